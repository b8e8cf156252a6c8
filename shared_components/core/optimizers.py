"""Provide torch's optimizers without importing torch._dynamo, with the same numbers and states.

torch wraps some functions of its optimizers for torch.compile. The wrappers import torch._dynamo, which takes 1.7 s per
process; this file uses the unwrapped functions. AdamW is fused, which takes a quarter of the time of torch's loop over
tensors on a CPU. The fused kernel reads a gradient with the strides of its weight. Gradients from `torch.autograd.grad`
may have other strides, so they are copied to the weight's layout first.
"""

from inspect import unwrap
from typing import Any

import torch
from torch.optim import Optimizer

_adamw_step, _sgd_step = unwrap(torch.optim.AdamW.step), unwrap(torch.optim.SGD.step)


class _Eager(Optimizer):
    add_param_group = unwrap(Optimizer.add_param_group)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)

    def _align_gradients(self) -> None:
        """Copy gradients whose strides differ from their weights', for fused steps."""
        for weight in (w for group in self.param_groups if group["fused"] for w in group["params"]):
            if weight.grad is not None and weight.grad.stride() != weight.stride():
                weight.grad = torch.empty_like(weight).copy_(weight.grad)


class AdamW(_Eager, torch.optim.AdamW):
    """`torch.optim.AdamW`, fused."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, fused=True, **settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step; gradients with other strides than their weights are copied first."""
        self._align_gradients()
        return _adamw_step(self, closure)


class SGD(_Eager, torch.optim.SGD):
    """`torch.optim.SGD`; recorded steps set it to fused, see `recorded_steps.Graphs`."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step; as for AdamW, gradients are copied first if it is fused."""
        self._align_gradients()
        return _sgd_step(self, closure)
