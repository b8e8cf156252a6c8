"""Local training in one round: batches, optimizers that continue over rounds, the method's memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.common.progress import follow
from shared_components.core import evaluation, replicas
from shared_components.core import training as local
from shared_components.core.fastest_step import FastestStep
from shared_components.core.method import Batch, Context, Extras, Losses, Method, Objective, State
from shared_components.core.partition import Partition, below, prefixed
from shared_components.core.schedules import UNSCHEDULED, write_rate
from shared_components.core.training_settings import Training
from shared_components.data.dataset import Features, SampleDataset, batches, once

OPTIMIZER, MEMORY = "optimizer:", "memory/"


@dataclass
class LocalRound:
    """Implementation of ``method.LocalWork``."""

    network: nn.Module
    partition: Partition
    context: Context
    method: Method
    dataset: SampleDataset
    settings: Training
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # state of earlier rounds, see `tensors`
    validation: SampleDataset | None = None  # validation frames, if the method trains with them
    features: Features | None = None  # cached features, see `feature_cache`
    workers: int = 0  # threads that read and augment samples
    fastest: FastestStep | None = None  # measures how a GPU takes steps fastest, if it is given
    stop: Callable[[], None] = lambda: None  # called before every batch; raises if the server has ended the task
    _optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    _steps: dict[str, tuple[tuple, local.TrainingSteps]] = field(default_factory=dict)  # of each optimizer, with tools

    def run(self) -> Losses:
        """Run the round's local iterations, with the method's own update or the plain loop."""
        return self.method.local.update(self) if self.method.local.update else self.train()

    def train(
        self,
        objective: Objective | None = None,
        *,
        network: nn.Module | None = None,
        iterations: int | None = None,
        key: str = "",
        partition: Partition | None = None,
        rate: float = 1.0,
    ) -> Losses:
        """Run the plain loop, see ``method.LocalWork``."""
        network = network or self.network
        count = self.settings.iterations if iterations is None else iterations
        self.context.iterations = count
        replicas.align(network)
        optimizer = self._optimizer(key, network, rate)
        chosen = objective or self.method.local.objective
        known = network, optimizer, self.method, self.context, partition or self.partition, chosen
        stream, earlier = self._augmented(count), self._steps.get(key)
        if earlier is None or not all(a is b for a, b in zip(earlier[0], known, strict=True)):
            steps = local.TrainingSteps(*known)
            if self.fastest is not None and self._device.type == "cuda" and replicas.size() == 1:
                first = list(islice(stream, 1))
                steps = self.fastest.prepare(steps, first, auto=self.settings.precision == "auto")
                stream = chain(first, stream)
            self._steps[key] = known, steps
        losses = self._steps[key][1].run(stream)
        replicas.refuse_unequal(network)
        return losses

    def batches(self, iterations: int) -> Iterator[Batch]:
        """Yield augmented training batches on the network's device."""
        return follow(self._augmented(iterations), "training", iterations)

    def frames(self, count: int | None = None) -> Iterator[Batch]:
        """Yield unaugmented training frames in batches, each frame once."""
        generator, size = self.context.generator, self.settings.batch_size
        whole = min(len(self.dataset), len(self.dataset) if count is None else count)
        stream = once(self.dataset, batch_size=size, count=count, generator=generator, device=self._device)
        for batch in follow(stream, "measuring", -(-whole // size)):
            self.stop()
            yield self.context.task.add_randomness(batch, generator)

    def validate(self, network: nn.Module) -> float | None:
        """Score a network on the validation frames, see ``method.LocalWork``."""
        if self.validation is None:
            return None
        self.stop()
        task, precision = self.context.task, local.precision_of(self.settings)
        if replicas.rank():
            return replicas.value_of_first(0.0)
        scores = evaluation.score_quickly(network, task, self.validation, precision=precision)
        return replicas.value_of_first(evaluation.first_value(task, scores))

    def measure(self) -> Extras:
        """Return the extras that the method measures after the local iterations."""
        method = self.method.local
        if method.measure is None:
            return {}
        stream = self.frames() if method.measure_images is None else self._few(method.measure_images)
        return method.measure(self.network, stream, self.context, self.partition)

    def tensors(self) -> State:
        """Return the state for the next round: every optimizer's tensors and the method's memory."""
        kept = {n: v for n, v in self.kept.items() if n.startswith(OPTIMIZER) and _key(n) not in self._optimizers}
        for key, optimizer in self._optimizers.items():
            kept |= prefixed(f"{OPTIMIZER}{key}/", local.optimizer_tensors(optimizer))
        memory = prefixed(MEMORY, self.context.memory)
        return kept | {name: value.detach().cpu().clone() for name, value in memory.items()}

    def _optimizer(self, key: str, network: nn.Module, rate: float) -> torch.optim.Optimizer:
        if key not in self._optimizers:
            optimizer = local.make_optimizer(network, self.settings)
            local.restore_optimizer(optimizer, below(f"{OPTIMIZER}{key}/", self.kept))
            self._optimizers[key] = optimizer
        for group in self._optimizers[key].param_groups:
            group[UNSCHEDULED] = rate * group.setdefault("of_the_job", group["lr"])
            write_rate(group, group[UNSCHEDULED])
        return self._optimizers[key]

    def _few(self, images: int) -> Iterator[Batch]:
        count = min(images, len(self.dataset))
        size = max(1, min(self.settings.batch_size, count))
        iterations, generator = -(-count // size), self.context.generator
        sizes: dict[str, Any] = {"batch_size": size, "iterations": iterations, "device": self._device}
        stream = batches(self.dataset, generator=generator, augment=False, **sizes)
        for batch in follow(stream, "measuring", iterations):
            yield self.context.task.add_randomness(batch, generator)

    def _augmented(self, iterations: int) -> Iterator[Batch]:
        for batch in local.training_batches(
            self.dataset, self.settings, self.method, self.context, iterations=iterations, device=self._device,
            features=self.features, workers=self.workers,
        ):  # fmt: skip
            self.stop()
            yield batch

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device


def _key(name: str) -> str:
    return name.removeprefix(OPTIMIZER).partition("/")[0]


def memory_of(kept: Mapping[str, Tensor]) -> State:
    """Return the method's memory from the tensors of `LocalRound.tensors`."""
    return below(MEMORY, kept)
