"""Train a network and its moving average, step by step; on a GPU, steps are recorded as CUDA graphs."""

import copy
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.common import machine
from shared_components.core.bundle import Bundle
from shared_components.core.initial_weights import load_initial_weights, parse_start
from shared_components.core.recorded_steps import Graphs, recordable
from shared_components.core.schedules import write_rate
from shared_components.core.task import Task
from shared_components.core.training import optimizer_tensors, restore_optimizer, round_seed
from shared_components.federation.runs.store import groups_of, named_groups
from shared_components.weights.pretraining.lessons import Lesson, layers_of, lessons_for
from shared_components.weights.pretraining.plan import Settings, build

CLIP = 1.0  # maximum norm of a step's gradient
_STEPS = 2  # number of the random stream


class Learner:
    """Trains a network and `average`, its moving average; randomness depends on the seed and the step's number."""

    def __init__(self, bundle: Bundle, task: Task, settings: Settings, start: str | Path = "random") -> None:
        self.task, self.settings, self.device = task, settings, machine.device()
        torch.manual_seed(settings.seed)
        self.network = build(bundle, task, settings)
        kind, file = parse_start(str(start))
        self.began = load_initial_weights(self.network, kind, card=task.card, bundle=bundle.name, file=file)
        self.network.to(self.device).train()
        self.lessons = lessons_for(bundle, task, self.network, objects=settings.objects)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.learnt = nn.ModuleList([self.network, *layers_of(self.lessons)]).to(self.device)
        self.optimizer = make_optimizer(self.learnt, settings)
        recorded = self.device.type == "cuda" and recordable(self.network, task)
        self.graphs = Graphs(self.optimizer) if recorded else None
        self._pairs = _by_dtype(self.average, self.network)
        self._share = torch.zeros((), device=self.device)  # weight of the next step in the moving average

    def step(self, number: int, batch: Mapping[str, Tensor]) -> float:
        """Take a step and return its loss; raise FloatingPointError if the loss or the gradient is not finite."""
        seed = round_seed(self.settings.seed, _STEPS, number)
        torch.manual_seed(seed)  # for dropout
        self._set(self.settings.rate(number), averaged_share(number, self.settings.average))
        lesson = self.lessons[number % len(self.lessons)]
        batch = lesson[0].add_randomness(batch, torch.Generator().manual_seed(seed))
        if self.graphs is not None:
            return _finite(number, self.graphs(partial(self._take, self.lessons[0]), batch))
        loss = _finite(number, self._learn(lesson, batch))
        self._move()
        return loss

    def _set(self, rate: float, share: float) -> None:
        self._share.fill_(share)
        for group in self.optimizer.param_groups:
            write_rate(group, rate)

    def _take(self, lesson: Lesson, batch: Mapping[str, Tensor]) -> Tensor:
        """Take a step and return loss and gradient norm, which the caller checks."""
        loss_and_norm = self._learn(lesson, batch)
        self._move()
        return loss_and_norm

    def _learn(self, lesson: Lesson, batch: Mapping[str, Tensor]) -> Tensor:
        """Compute the gradient of a batch; return the loss and the gradient's norm, (2,)."""
        task, network = lesson
        mixed = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed, cache_enabled=self.graphs is None):
            loss = task.loss(task.predict(network, batch), batch)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.learnt.parameters(), CLIP)
        return torch.stack([loss.detach().float(), norm.float()])

    @torch.no_grad()
    def _move(self) -> None:
        self.optimizer.step()
        for dtype, (averages, values) in self._pairs.items():
            if dtype.is_floating_point:
                difference = torch._foreach_sub(values, averages)
                torch._foreach_mul_(difference, self._share)
                torch._foreach_add_(averages, difference)
            else:
                torch._foreach_copy_(averages, values)

    def tensors(self) -> dict[str, Tensor]:
        states = {"learnt": self.learnt.state_dict(), "average": self.average.state_dict()}
        return named_groups(states | {"optimizer": optimizer_tensors(self.optimizer)})

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo :meth:`tensors`."""
        groups = groups_of(tensors)
        self.learnt.load_state_dict(groups["learnt"])
        self.average.load_state_dict(groups["average"])
        restore_optimizer(self.optimizer, groups.get("optimizer", {}))


def make_optimizer(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW without weight decay of norms and biases."""
    decaying = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    fused = decaying[0].is_cuda or None
    return torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=fused)


def averaged_share(number: int, decay: float) -> float:
    """Return the weight of step n in the moving average, 1 - min(decay, (1 + n) / (10 + n)); 1 for the first step."""
    return 1 - min(decay, (1 + number) / (10 + number)) if number else 1.0


def _tensors(network: nn.Module) -> list[Tensor]:
    """Return parameters and buffers, each once."""
    return [*(p.detach() for p in network.parameters()), *network.buffers()]


def _by_dtype(first: nn.Module, second: nn.Module) -> dict[torch.dtype, tuple[list[Tensor], list[Tensor]]]:
    """Return the tensors of two networks with the same structure by type."""
    pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for a, b in zip(_tensors(first), _tensors(second), strict=True):
        pair = pairs.setdefault(a.dtype, ([], []))
        pair[0].append(a)
        pair[1].append(b)
    return pairs


def _finite(number: int, loss_and_norm: Tensor) -> float:
    """Return the loss; raise FloatingPointError if the loss or the gradient's norm is not finite."""
    loss, norm = loss_and_norm.tolist()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(f"the loss of step {number} is {loss}, its gradient {norm}")
    return loss
