"""Local training of one site inside MONAI's SupervisedTrainer, bit-equal to a federation's local training."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer, Workflow
from torch import Tensor, distributed, nn

from shared_components.bundle_engines.options import ConfigError
from shared_components.common.machine import frame_workers
from shared_components.common.progress import report_progress
from shared_components.core import replicas
from shared_components.core.bundle import load_bundle
from shared_components.core.fastest_step import FastestStep
from shared_components.core.feature_cache import FOLDER, open_cache
from shared_components.core.method import Batch, Context, Method
from shared_components.core.partition import partition_network, train_mode
from shared_components.core.site_conditioning import condition_on_site
from shared_components.core.task import Task, checkpoint_header
from shared_components.core.training import TrainingSteps, check_answers, check_network, make_context, training_batches
from shared_components.core.training_settings import Training
from shared_components.data.dataset import Features, SampleDataset
from shared_components.data.profile_items import ITEMS
from shared_components.data.site import Site
from shared_components.networks.bundle_config import weightless
from shared_components.networks.checkpoints import save_weights
from shared_components.networks.network_arguments import differing


class Rounds:
    """Batches by round: each iteration over this object is the next round.

    Batches, dropout and styles depend on (seed, site's number, round) as in a federation of only this site
    (`shared_components.core.training.make_context`), which has only this site's profile items. Each process of a
    distributed training has its own batches, by its `rank`.
    """

    def __init__(
        self, dataset: SampleDataset, settings: Training, task: Task, method: Method, *, rank: int = 0
    ) -> None:
        self.dataset = dataset
        try:
            self.settings = settings.for_samples(len(dataset))
        except ValueError as error:
            raise ConfigError(f"site {dataset.site.name}: {error}") from None
        self.rank, self.task, self._next = rank, task, 0
        self._method = method
        self.features: Features | None = None  # feature cache of the network, see `TrainingStep`
        self.device = torch.device("cpu")  # of the network, see `TrainingStep`
        text = dataset.site.text
        self._items = {name: [ITEMS[name].measure(dataset, text)] for name in sorted(method.requires.items)}

    def __len__(self) -> int:
        return self.settings.iterations

    def __iter__(self) -> Iterator[Batch]:
        context = make_context(
            self.settings, self.task, round=self._next, rounds=self.settings.rounds, site=self.rank, items=self._items
        )
        self.context: Context = replace(context, site=0)  # context of the current round
        self._next += 1
        yield from training_batches(
            self.dataset, self.settings, self._method, self.context, iterations=self.settings.iterations,
            device=self.device, features=self.features, workers=frame_workers(),
        )  # fmt: skip


class TrainingStep:
    """The `iteration_update` of SupervisedTrainer: steps of `training.TrainingSteps`, as in a federation.

    `features` is the folder of the cache of `training.feature_cache_gb`, see `core.feature_cache`. A GPU records steps
    as CUDA graphs if `recorded` is true and network, method and task allow it.

    Raises:
        ConfigError: The network does not fit the task or method, or its features cannot be cached.
        SiteError: The network cannot be conditioned on the site, see `site_conditioning.condition_on_site`.
    """

    def __init__(
        self, method: Method, network: nn.Module, rounds: Rounds, *, features: str = FOLDER, recorded: bool = True
    ) -> None:
        self._method, self._rounds = method, rounds
        self._steps: TrainingSteps | None = None  # of this round
        self._fastest = FastestStep().for_run(rounds.settings.rounds * rounds.settings.iterations)
        self._eager = "" if recorded else "the option train#step#recorded is false"
        try:
            check_network(network, method, rounds.task)
            check_answers(network, rounds.task, (rounds.settings.height, rounds.settings.width))
            self._partition = partition_network(network, method.partition)
            rounds.device, adds = next(network.parameters()).device, rounds.rank == 0
            rounds.features = open_cache(network, self._partition, rounds.settings, Path(features), adds=adds)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        site = rounds.dataset.site
        condition_on_site(method, network, self._partition, site, name=site.name, number=0, count=1)

    def __call__(self, engine: SupervisedTrainer, batch: Batch) -> list[dict[str, float | Tensor]]:
        """Take one step and return [the loss terms by name, with their sum "loss"]; of recorded steps as tensors.

        MONAI's handlers expect a list (`from_engine(["loss"], first=True)`). FloatingPointError as `TrainingSteps`.
        """
        train_mode(engine.network, self._partition)
        moved = {key: value.to(engine.state.device) for key, value in batch.items()}
        context = self._rounds.context
        context.iteration = (engine.state.iteration - 1) % context.iterations
        if self._steps is None or self._steps.context is not context:
            context.eager = self._eager
            steps = TrainingSteps(engine.network, engine.optimizer, self._method, context, self._partition)
            if self._fastest is not None:
                steps = self._fastest.prepare(steps, [moved], auto=self._rounds.settings.precision == "auto")
            steps.log()
            self._steps = steps
        losses = self._steps.take(moved)
        if context.iteration + 1 == context.iterations:
            self._steps.read()
        title = f"round {engine.state.epoch}/{engine.state.max_epochs} training"
        report_progress(title, context.iteration + 1, context.iterations, self._steps.note)
        return [{"loss": sum(losses.values()), **losses}]


class LossMeans:
    """Handler that writes the mean of every loss term over the round to `engine.state.metrics`."""

    def __init__(self) -> None:
        self._totals: dict[str, float | Tensor] = defaultdict(float)

    def attach(self, engine: Workflow) -> None:
        """Attach to a trainer whose output is a list with one dict of numbers."""
        engine.add_event_handler(Events.EPOCH_STARTED, lambda: self._totals.clear())
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._add)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._publish)

    def _add(self, engine: Workflow) -> None:
        for name, value in engine.state.output[0].items():
            self._totals[name] += value

    def _publish(self, engine: Workflow) -> None:
        engine.state.metrics.update({name: float(t) / engine.state.epoch_length for name, t in self._totals.items()})


class WeightSaver:
    """Handler that saves a network as safetensors after every round.

    The header contains the `notes`, the round and the validation score. With `best_only`, attached to an evaluator, it
    saves only the best checkpoint by the evaluator's key metric, exactly the scored weights.
    """

    def __init__(
        self, network: nn.Module, path: str, *, notes: dict[str, str] | None = None, best_only: bool = False
    ) -> None:
        self._network, self._path, self._notes, self._best_only = network, Path(path), notes or {}, best_only

    def attach(self, engine: Workflow) -> None:
        """Attach to an engine, after the metrics."""
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._save)

    def _save(self, engine: Workflow) -> None:
        state, notes = engine.state, {**self._notes, "round": str(engine.state.epoch)}
        if self._best_only:
            if state.best_metric_epoch != state.epoch or math.isnan(state.best_metric):
                return
            notes[f"validation_{state.key_metric_name}"] = str(state.best_metric)
        save_weights(self._path, self._network.state_dict(), notes)


def notes_of(
    bundle: str,
    method: Method,
    site: Site,
    task: Task,
    settings: Training,
    tasks: Mapping[str, Any],
    network: nn.Module,
    seen: Mapping[str, str],
) -> dict[str, str]:
    """Return the entries of a checkpoint's header: origin, task, input size, network and seen videos.

    `tasks` is the section `tasks`; `seen` is the result of `prepare.seen_videos`.
    """
    size, numbers = (settings.height, settings.width), tasks.get(task.card.kind) or {}
    chosen = differing(network, weightless(load_bundle(bundle).network))
    notes = checkpoint_header(bundle, method.name, task, numbers, size=size, network=chosen)
    return notes | {"site": site.name, **seen}


def join() -> torch.device:
    """Join the process group of torchrun, and return this process's device."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if not distributed.is_initialized():
        distributed.init_process_group(backend, timeout=replicas.LONGEST_WAIT)
    if backend == "gloo":
        return torch.device("cpu")
    device = torch.device("cuda", distributed.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def leave() -> None:
    """Leave the process group."""
    distributed.destroy_process_group()


def on_first_rank(handlers: Sequence[Any]) -> list[Any]:
    """Return the handlers in the first process, which validates and saves, and an empty list in other processes."""
    return list(handlers) if distributed.get_rank() == 0 else []


def average_gradients(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Average the gradients of all processes before every step of the optimizer.

    DistributedDataParallel cannot do this: its hooks miss `torch.autograd.grad`, which the training step calls once per
    role.
    """
    optimizer.register_step_pre_hook(_average)
    return optimizer


def _average(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    replicas.average([p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None])
