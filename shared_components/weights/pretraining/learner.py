"""Train a network and its moving average, step by step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.common import machine
from shared_components.core.bundle import Bundle
from shared_components.core.initial_weights import load_initial_weights, parse_start
from shared_components.core.task import Task
from shared_components.core.training import optimizer_tensors, restore_optimizer, round_seed
from shared_components.federation.runs.store import groups_of, named_groups
from shared_components.weights.pretraining.graphs import Graphs
from shared_components.weights.pretraining.lessons import Lesson, layers_of, lessons_for
from shared_components.weights.pretraining.plan import Settings, build

CLIP = 1.0  # the largest norm of a step's gradient
_STEPS = 2  # number of the random stream


class Learner:
    """Takes the steps of a pre-training; randomness follows from the seed and the step's number.

    Attributes:
        average: the network with the moving average of its weights.
        graphs: steps as CUDA graphs, on a GPU where they are `recordable`.
    """

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
        self.graphs = Graphs(partial(self._take, self.lessons[0]), self._undoing) if recorded else None
        self._pairs = _by_kind(self.average, self.network)
        self._share = torch.zeros((), device=self.device)  # of the next step's weights in the average

    def step(self, number: int, batch: Mapping[str, Tensor]) -> float:
        """Take a step on a batch of the learner's device and return its loss.

        Raises:
            FloatingPointError: The loss or the gradient is not finite; the step is not taken, but by a graph.
        """
        seed = round_seed(self.settings.seed, _STEPS, number)
        torch.manual_seed(seed)  # for dropout
        self._set(self.settings.rate(number), averaged_share(number, self.settings.average))
        lesson = self.lessons[number % len(self.lessons)]
        drawn = lesson[0].add_randomness(batch, torch.Generator().manual_seed(seed))
        if self.graphs is not None:
            return _finite(number, self.graphs(drawn))
        loss = _finite(number, self._learn(lesson, drawn))
        self._move()
        return loss

    def _set(self, rate: float, share: float) -> None:
        """Set the learning rate, and the share of the new weights in the average, of the next step."""
        self._share.fill_(share)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _take(self, lesson: Lesson, batch: Mapping[str, Tensor]) -> Tensor:
        """Take a step and return what `_learn` does, which is checked by whoever replays it."""
        found = self._learn(lesson, batch)
        self._move()
        return found

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
        """Move weights by their gradients, and the average by the weights."""
        self.optimizer.step()
        for kind, (averages, values) in self._pairs.items():
            if kind.is_floating_point:
                difference = torch._foreach_sub(values, averages)
                torch._foreach_mul_(difference, self._share)
                torch._foreach_add_(averages, difference)
            else:
                torch._foreach_copy_(averages, values)

    def _undoing(self) -> Callable[[], None]:
        """Return what sets network, average and optimizer back to now."""
        modules = [*_tensors(self.learnt), *_tensors(self.average)]
        kept = [value.clone() for value in modules]
        slots = {p: {name: value.clone() for name, value in found.items()} for p, found in self.optimizer.state.items()}

        @torch.no_grad()
        def undo() -> None:
            torch._foreach_copy_(modules, kept)
            for p, found in self.optimizer.state.items():
                for name, value in found.items():
                    value.copy_(slots[p][name] if p in slots else torch.zeros_like(value))  # as AdamW begins

        return undo

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of network, average and optimizer."""
        return named_groups(
            {
                "learnt": self.learnt.state_dict(),
                "average": self.average.state_dict(),
                "optimizer": optimizer_tensors(self.optimizer),
            }
        )

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo :meth:`tensors`."""
        groups = groups_of(tensors)
        self.learnt.load_state_dict(groups["learnt"])
        self.average.load_state_dict(groups["average"])
        restore_optimizer(self.optimizer, groups.get("optimizer", {}))


def recordable(network: nn.Module, task: Task) -> bool:
    """Say whether a step's work follows from its batch's shape alone, as far as it has been seen on a GPU."""
    return getattr(network, "recordable", False) and task.card.kind == "segmentation" and task.prompting is None


def make_optimizer(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW without weight decay of norms and biases; on a GPU it can be recorded in graphs."""
    decaying = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    if not decaying[0].is_cuda:
        return torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    rate = torch.tensor(settings.learning_rate, device=decaying[0].device)
    return torch.optim.AdamW(groups, lr=rate, weight_decay=settings.weight_decay, fused=True, capturable=True)


def averaged_share(number: int, decay: float) -> float:
    """Return the share of a step's weights in their moving average: its n-th decay is min(decay, (1 + n) / (10 + n)).

    The first step's weights are the first average.
    """
    return 1 - min(decay, (1 + number) / (10 + number)) if number else 1.0


def _tensors(network: nn.Module) -> list[Tensor]:
    """Return parameters and buffers, each once."""
    return [*(p.detach() for p in network.parameters()), *network.buffers()]


def _by_kind(one: nn.Module, other: nn.Module) -> dict[torch.dtype, tuple[list[Tensor], list[Tensor]]]:
    """Return the states of two networks of one structure by their types."""
    found: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for a, b in zip(_tensors(one), _tensors(other), strict=True):
        ones, others = found.setdefault(a.dtype, ([], []))
        ones.append(a)
        others.append(b)
    return found


def _finite(number: int, found: Tensor) -> float:
    """Return a step's loss of its loss and its gradient's norm; FloatingPointError where one is no number."""
    loss, norm = found.tolist()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(f"the loss of step {number} is {loss}, its gradient {norm}")
    return loss
