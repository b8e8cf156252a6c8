"""A network, its moving average and its optimizer, from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from shared_components.common import machine
from shared_components.core.initial_weights import begin, chosen_start
from shared_components.core.task import Task
from shared_components.core.training import optimizer_tensors, restore_optimizer, round_seed
from shared_components.experiments.pretraining.lessons import layers_of, lessons_for
from shared_components.experiments.pretraining.plan import Settings, build
from shared_components.federation.store import groups_of, named_groups
from shared_components.networks.bundle_config import Bundle

CLIP = 1.0  # the largest norm of a step's gradient
_STEPS = 2  # number of the random stream


class Learner:
    """Takes the steps of a pre-training; randomness follows from the seed and the step's number."""

    def __init__(self, bundle: Bundle, task: Task, settings: Settings, start: str | Path = "random") -> None:
        self.task, self.settings, self.device = task, settings, machine.device()
        torch.manual_seed(settings.seed)
        self.network = build(bundle, task, settings)
        kind, file = chosen_start(str(start))
        self.began = begin(self.network, kind, card=task.card, bundle=bundle.name, file=file)
        self.network.to(self.device).train()
        self.lessons = lessons_for(bundle, task, self.network, objects=settings.objects)
        self.average = AveragedModel(self.network, avg_fn=_averaging(settings.average), use_buffers=True)
        self.learnt = nn.ModuleList([self.network, *layers_of(self.lessons)]).to(self.device)
        self.optimizer = make_optimizer(self.learnt, settings)

    def step(self, number: int, batch: Mapping[str, Tensor]) -> float:
        """Take a step on a batch and return its loss.

        Raises:
            FloatingPointError: The loss or the gradient is not finite; the step is not taken.
        """
        seed = round_seed(self.settings.seed, _STEPS, number)
        torch.manual_seed(seed)  # for dropout
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(number)
        task, network = self.lessons[number % len(self.lessons)]
        drawn = task.add_randomness(batch, torch.Generator().manual_seed(seed))
        moved = {name: value.to(self.device) for name, value in drawn.items()}
        mixed = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = task.loss(task.predict(network, moved), moved)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.learnt.parameters(), CLIP)
        if not (math.isfinite(value := float(loss.detach())) and math.isfinite(float(norm))):
            raise FloatingPointError(f"the loss of step {number} is {value}, its gradient {float(norm)}")
        self.optimizer.step()
        self.average.update_parameters(self.network)
        return value

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


def make_optimizer(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW without weight decay of norms and biases."""
    decaying = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)


def _averaging(decay: float) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    """Return an exponential moving average with decay min(decay, (1 + n) / (10 + n)) at its n-th update."""

    def averaged(average: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        if not average.is_floating_point():
            return current
        n = int(count)
        return average.lerp(current, 1 - min(decay, (1 + n) / (10 + n)))

    return averaged
