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
from shared_components.experiments.pretraining.graphs import use_graphs
from shared_components.experiments.pretraining.lessons import layers_of, lessons_for
from shared_components.experiments.pretraining.plan import Settings, build
from shared_components.federation.store import groups_of, named_groups
from shared_components.networks.bundle_config import Bundle

CLIP = 1.0  # the largest norm of a step's gradient
_STEPS = 2  # number of the random stream
Tensors = list[Tensor] | tuple[Tensor, ...]
GRAPHED = ("segmentation", "depth")  # tasks whose networks do the same whatever is in a frame


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
        self.average = AveragedModel(self.network, multi_avg_fn=_averaging(settings.average), use_buffers=True)
        self.learnt = nn.ModuleList([self.network, *layers_of(self.lessons)]).to(self.device)
        self.optimizer = make_optimizer(self.learnt, settings)
        self.graphed = self.device.type == "cuda" and task.prompting is None and task.card.kind in GRAPHED
        if self.graphed:
            use_graphs(self.network)

    def step(self, number: int, batch: Mapping[str, Tensor]) -> float:
        """Take a step on a batch of the learner's device and return its loss.

        Raises:
            FloatingPointError: The loss or the gradient is not finite; the step is not taken.
        """
        seed = round_seed(self.settings.seed, _STEPS, number)
        torch.manual_seed(seed)  # for dropout
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(number)
        task, network = self.lessons[number % len(self.lessons)]
        drawn = task.add_randomness(batch, torch.Generator().manual_seed(seed))
        mixed = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed, cache_enabled=not self.graphed):
            loss = task.loss(task.predict(network, drawn), drawn)
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
    fused = all(p.is_cuda for p in network.parameters())  # see `core.optimizers` for other devices
    return torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=fused)


def _averaging(decay: float) -> Callable[[Tensors, Tensors, Tensor | int], None]:
    """Return an exponential moving average with decay min(decay, (1 + n) / (10 + n)) at its n-th update."""

    def averaged(averages: Tensors, current: Tensors, count: Tensor | int) -> None:
        if not averages[0].is_floating_point():  # all have one type
            torch._foreach_copy_(averages, current)
            return
        n = int(count)
        torch._foreach_lerp_(averages, current, 1 - min(decay, (1 + n) / (10 + n)))

    return averaged
