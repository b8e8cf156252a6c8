"""Several processes train one site's network: started by torchrun, one per GPU (or per core, with gloo)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

VALIDATION_LIMIT = timedelta(hours=2)
"""Timeout of the other processes while the first one validates."""


def join() -> torch.device:
    """Join the processes that torchrun started and return this one's device."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if not distributed.is_initialized():
        distributed.init_process_group(backend, timeout=VALIDATION_LIMIT)
    if backend == "gloo":
        return torch.device("cpu")
    device = torch.device("cuda", distributed.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def leave() -> None:
    """Leave the group."""
    distributed.destroy_process_group()


def on_first_rank(handlers: Sequence[Any]) -> list[Any]:
    """Return the handlers in the first process, which validates and saves, and none in the others."""
    return list(handlers) if distributed.get_rank() == 0 else []


def average_gradients(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Average the gradients of all processes before every step of the optimizer.

    DistributedDataParallel cannot: its hooks miss `torch.autograd.grad`, by which the training step computes gradients
    once per role.
    """
    optimizer.register_step_pre_hook(_average)
    return optimizer


def _average(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
