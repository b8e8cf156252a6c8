"""Train a network at one site: the training step of bundles and federations, and a round of steps.

A bundle takes `TrainingSteps` inside MONAI's SupervisedTrainer. A federation runs them without MONAI, which takes five
seconds to import; a test proves that both give equal bits.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from shared_components.common import machine
from shared_components.common.progress import report_progress
from shared_components.core import replicas
from shared_components.core.method import Batch, Context, Losses, Method, Objective, Term, task_objective
from shared_components.core.objectives import route_gradients
from shared_components.core.optimizers import SGD, AdamW
from shared_components.core.parameter_groups import parameter_groups
from shared_components.core.partition import Partition, partition_network, train_mode
from shared_components.core.prompted_streams import prompted
from shared_components.core.recorded_steps import Graphs, NotRecordable, recordable, recording
from shared_components.core.schedules import pace_of, set_rates
from shared_components.core.task import Task
from shared_components.core.training_settings import Precision, Training
from shared_components.data.dataset import Features, SampleDataset, batches
from shared_components.networks.adapter import check_outputs
from shared_components.networks.parts import trained_parameters
from shared_components.networks.protocols import require

logger = logging.getLogger(__name__)

REMEDY = "lower learning_rate, or check the labels and, where the start is random, for frames that are all black"
"""Remedy for losses or weights that are not finite, for error messages."""


def make_optimizer(network: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return AdamW (PFedSIS, Section IV-B) or SGD over all trained parameters; ValueError as `parameter_groups`."""
    groups, rate, decay = parameter_groups(network, training), training.learning_rate, training.weight_decay
    if training.optimizer == "sgd":
        return SGD(groups, rate, momentum=training.momentum, weight_decay=decay)
    return AdamW(groups, rate, betas=training.betas, weight_decay=decay)


def make_context(
    training: Training, task: Task, *, round: int, site: int, rounds: int, rate: float | None = None, **known: Any
) -> Context:
    """Return the context of one of ``rounds`` rounds, and seed torch.

    ``rate`` is a factor of the learning rates that replaces their schedule in this round, see `Local.rates`. All
    randomness of a round (batches, dropout, styles) depends only on (seed, index of the site, round), so that a round
    can be repeated in any process.
    """
    seed = round_seed(training.seed, site, round)
    torch.manual_seed(seed)
    pace, generator = pace_of(training, round=round, rounds=rounds, rate=rate), torch.Generator().manual_seed(seed)
    settings: Any = {"iterations": training.iterations, "accumulate": training.accumulate, **known}
    return Context(round, task, generator, site, precision=precision_of(training), pace=pace, **settings)


def precision_of(training: Training) -> Precision:
    """Return the precision of the forward pass on this machine."""
    return machine.fast_precision() if training.precision == "auto" else training.precision


def round_seed(seed: int, site: int, round: int) -> int:
    """Mix three numbers into a 63-bit seed, by a fixed polynomial that is the same on every machine."""
    value = seed
    for number in (site, round):
        value = (value * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % 2**63
    return value


def train_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Method,
    batch: Batch,
    context: Context,
    partition: Partition,
    objective: Objective | None = None,
) -> Losses:
    """Take one optimizer step on one batch, by default with the method's objective; return the loss terms by name.

    The forward pass and the losses have the context's precision; gradients and weights are float32. With gradient
    accumulation, only every n-th batch ends with a step, with the mean gradient of n batches. If a loss term is not
    finite, FloatingPointError is raised before the step.
    """

    def backward() -> Losses:
        terms = _terms(objective or method.local.objective, network, batch, context)
        losses = {term.name: float(term.value.detach()) for term in terms}
        _refuse_infinite(losses, context)
        route_gradients(terms, network, partition)
        replicas.average_gradients(network)
        return losses

    losses = method.local.gradients(network, backward, context) if method.local.gradients else backward()
    if context.accumulate > 1 and not _gathered(network, context):
        return losses
    if context.pace is not None:
        set_rates(optimizer, context.pace(context.iteration / context.iterations))
    optimizer.step()
    return losses


def _terms(objective: Objective, network: nn.Module, batch: Batch, context: Context) -> Sequence[Term]:
    where, mixed = next(network.parameters()).device.type, context.precision == "bf16"
    # a graph must not use weights that were rounded before its recording
    with (
        torch.autocast(where, dtype=torch.bfloat16, enabled=mixed, cache_enabled=not recording()),
        replicas.divided(network),
    ):
        return objective(network, batch, context)


def _refuse_infinite(losses: Losses, context: Context) -> None:
    if bad := {name: value for name, value in losses.items() if not math.isfinite(value)}:
        raise FloatingPointError(f"loss terms {bad} in round {context.round}; {REMEDY}")


def _gathered(network: nn.Module, context: Context) -> bool:
    """Accumulate gradients; at every n-th batch, set the mean gradients and return True."""
    trained, sums = trained_parameters(network), context.gathered
    for name, parameter in trained.items():
        if parameter.grad is not None:
            sums[name] = parameter.grad + sums[name] if name in sums else parameter.grad
    if (context.iteration + 1) % context.accumulate:
        return False
    for name, parameter in trained.items():
        parameter.grad = sums.pop(name) / context.accumulate if name in sums else None
    return True


def training_batches(
    dataset: SampleDataset,
    settings: Training,
    method: Method,
    context: Context,
    *,
    iterations: int,
    device: torch.device,
    features: Features | None = None,
    workers: int = 0,
) -> Iterator[Batch]:
    """Yield augmented training batches on a device, with the random inputs of method and task; see `batches`.

    Each of several `replicas` reads its rows of a batch, and gets all.
    """
    draw, size = method.local.random_inputs, settings.batch_size
    stream = batches(
        dataset, batch_size=size, iterations=iterations, generator=context.generator, augment=True,
        features=features, inputs=None if draw is None else lambda size, generator: draw(size, context, generator),
        workers=workers, device=device, rows=replicas.own_rows(size),
        whole=lambda own: replicas.whole_batch(own, size), **settings.augmentation,
    )  # fmt: skip
    for batch in stream:
        yield context.task.add_randomness(batch, context.generator)


READ_EVERY = 20  # recorded steps between two readings of their losses


class TrainingSteps:
    """Takes a network's training steps with one optimizer in one round; on a GPU as CUDA graphs where possible.

    A recorded step gives the weights of `train_step` up to rounding (tested on a CPU: 1e-6 after eight steps of SGD;
    AdamW enlarges the rounding of gradients near 0). Its losses stay on the device; FloatingPointError follows after at
    most `READ_EVERY` steps, or at the end of `run`.

    Attributes:
        why_eager: Reason why the steps are not recorded; empty: they are.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Method,
        context: Context,
        partition: Partition,
        objective: Objective | None = None,
    ) -> None:
        self.network, self.optimizer, self.method = network, optimizer, method
        self.context, self.partition, self.objective = context, partition, objective or method.local.objective
        self.why_eager = why_eager(network, optimizer, method, context, self.objective)
        self._graphs = None if self.why_eager else Graphs(optimizer)
        self._names: tuple[str, ...] = ()  # of the loss terms
        self._sums: dict[str, Tensor] = {}  # gradients of batches before the next optimizer step
        self._unread: list[Tensor] = []  # losses of recorded steps, each (terms,)
        self._totals: dict[str, list[float]] = defaultdict(list)
        self._last: Losses = {}  # losses read last

    def log(self) -> None:
        """Log whether a GPU records the steps, and otherwise the reason."""
        if next(self.network.parameters()).device.type == "cuda":
            how = f"eager: {self.why_eager}" if self.why_eager else "recorded as CUDA graphs"
            logger.info("round %d: training steps are %s", self.context.round + 1, how)

    def run(self, batches: Iterable[Batch]) -> Losses:
        """Train on each batch, and return the mean of each loss term over the steps in which it occurs."""
        if not self._last:
            self.log()
        train_mode(self.network, self.partition)
        context, where = self.context, next(self.network.parameters()).device
        context.gathered.clear()
        if self._sums:
            torch._foreach_zero_(list(self._sums.values()))
        self._totals.clear()
        report_progress("training", 0, context.iterations)
        for number, batch in enumerate(batches):
            context.iteration = number
            self.take({key: value.to(where) for key, value in batch.items()})
            report_progress("training", number + 1, context.iterations, self.note)
        self.read()
        return {name: sum(values) / len(values) for name, values in self._totals.items()}

    @property
    def note(self) -> str:
        """Loss of the step that was read last, for progress reports."""
        return f"loss {sum(self._last.values()):.3f}" if self._last else ""

    def take(self, batch: Batch) -> Mapping[str, float | Tensor]:
        """Take one step on a batch on the network's device; return the loss terms, of recorded steps as tensors."""
        context = self.context
        if self._graphs is None:
            return self._take_eagerly(batch)
        ends = (context.iteration + 1) % context.accumulate == 0
        if ends and context.pace is not None:
            set_rates(self.optimizer, context.pace(context.iteration / context.iterations))
        try:
            self._unread.append(self._graphs(self._take, batch, ends).clone())
        except NotRecordable as error:
            logger.warning("the next steps are eager: %s", error)
            self.read()
            self.why_eager, self._graphs = str(error), None
            context.gathered.update(self._sums)
            return self._take_eagerly(batch)
        terms = dict(zip(self._names, self._unread[-1], strict=True))
        if len(self._unread) == READ_EVERY:
            self.read()
        return terms

    def _take_eagerly(self, batch: Batch) -> Losses:
        losses = train_step(
            self.network, self.optimizer, self.method, batch, self.context, self.partition, self.objective
        )
        self._add(losses)
        return losses

    def read(self) -> None:
        """Read the losses of recorded steps; raise FloatingPointError at the first step with a loss not finite."""
        rows = torch.stack(self._unread).tolist() if self._unread else []
        self._unread.clear()
        for row in rows:
            losses = dict(zip(self._names, row, strict=True))
            _refuse_infinite(losses, self.context)
            self._add(losses)

    def _add(self, losses: Losses) -> None:
        self._last = losses
        for name, value in losses.items():
            self._totals[name].append(value)

    def _take(self, batch: Batch, ends: bool) -> Tensor:
        """Take a step without reading values; return the loss terms, (terms,) float64. `ends`: the optimizer steps."""
        terms = _terms(self.objective, self.network, batch, self.context)
        route_gradients(terms, self.network, self.partition)
        if self.context.accumulate > 1:
            self._gather(ends)
        if ends:
            self.optimizer.step()
        self._names = tuple(term.name for term in terms)
        return torch.stack([term.value.detach().double() for term in terms])

    def _gather(self, ends: bool) -> None:
        """Do as `_gathered`, with sums that stay in the same tensors."""
        graded = {name: p for name, p in trained_parameters(self.network).items() if p.grad is not None}
        for name, parameter in graded.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(parameter.detach())
        sums = [self._sums[name] for name in graded]
        torch._foreach_add_(sums, [p.grad for p in graded.values() if p.grad is not None])
        if not ends:
            return
        for parameter, mean in zip(graded.values(), torch._foreach_div(sums, self.context.accumulate), strict=True):
            parameter.grad = mean
        torch._foreach_zero_(sums)


def why_eager(
    network: nn.Module, optimizer: torch.optim.Optimizer, method: Method, context: Context, objective: Objective
) -> str:
    """Return the reason why a CUDA graph cannot record the steps of a network, or an empty text if it can."""
    if (where := next(network.parameters()).device.type) != "cuda":
        return f"the device is {where}"
    if context.eager:
        return context.eager
    if not isinstance(optimizer, AdamW | SGD):
        return f"the optimizer is {type(optimizer).__name__}"
    if distributed.is_available() and distributed.is_initialized():
        return "several processes share the training"
    if method.local.gradients is not None:
        return f"{method.name} takes several backward passes per step"
    if objective is not task_objective and not getattr(objective, "recordable", False):
        return f"the loss of {method.name} is not declared recordable"
    if not recordable(network, context.task):
        return f"{type(network).__name__} with the task {context.task.card.kind} is not declared recordable"
    return ""


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Flatten the per-parameter state of an optimizer to named tensors for safetensors."""
    return {
        f"{index}/{key}": value.detach().cpu().clone()
        for index, slots in optimizer.state_dict()["state"].items()
        for key, value in slots.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo :func:`optimizer_tensors`; the optimizer keeps its hyper-parameters."""
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, value in tensors.items():
        index, _, key = name.partition("/")
        state[int(index)][key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(state)})


def reason_for_misfit(method: Method, network: nn.Module) -> str:
    """Return the reason why a method does not fit a network for any task, or an empty text if it fits."""
    try:
        if method.requires.network is not None:
            require(network, method.requires.network, method.name)
        partition_network(network, method.partition)
    except ValueError as error:
        return str(error)
    return ""


def check_network(network: nn.Module, method: Method, task: Task) -> None:
    """Raise ValueError if a network does not support the task's clips or the method's requirements."""
    check_frames(network, task)
    if method.requires.network is not None:
        require(network, method.requires.network, method.name)


MAPS = ("segmentation", "depth", "reconstruction")  # kinds of task with outputs of the frame's size


def check_answers(network: nn.Module, task: Task, size: tuple[int, int]) -> None:
    """Run another library's network once at (height, width); raise ValueError if its outputs do not fit the task."""
    maps = task.card.kind in MAPS
    check_outputs(network, channels=task.channels, size=size, frames=task.spec.frames, maps=maps)


def check_frames(network: nn.Module, task: Task) -> None:
    """Raise ValueError if the task has clips or box prompts that the network does not support."""
    if task.prompting is not None:
        prompted(network)
    kind, frames = type(network).__name__, task.spec.frames
    asks = f"{task.card.kind} asks for clips of {frames} frames, and {kind} takes"
    if frames > 1 and not getattr(network, "takes_clips", False):
        raise ValueError(
            f"{asks} single ones; write frames: 1 and interval: 0.0 for it in 'tasks', or choose a bundle whose "
            "network takes clips (where that is an argument of the network, network.temporal: true)"
        )
    if frames > 1 and (due := getattr(network, "frames", frames)) != frames:
        raise ValueError(f"{asks} {due}; write frames: {due} for it in 'tasks', or change the network")
