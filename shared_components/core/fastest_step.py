"""Choose the fastest way to take a training step on a site's GPU, by measurement: once per run, on the first batch."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from shared_components import __version__
from shared_components.common import machine
from shared_components.core.method import Batch, Context
from shared_components.core.objectives import RandomState
from shared_components.core.partition import train_mode
from shared_components.core.recorded_steps import WARM_UP
from shared_components.core.training import TrainingSteps

WORTH = 1_000  # minimum steps of a run for a measurement, which takes about 60 steps
TIMED = 5  # steps that are timed together
GAIN = 0.97  # a candidate replaces the best one so far if it takes at most this share of the best one's time

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """One way to take a step."""

    recorded: bool = True  # as a CUDA graph
    benchmark: bool = False  # cuDNN times its kernels for every new shape
    channels_last: bool = False  # memory format of four-dimensional weights
    precision: Literal["float32", "tf32", "bf16"] = "float32"  # tf32: also in matrix products, as PyTorch's "high"

    def __str__(self) -> str:
        ways = [name for name in ("recorded", "benchmark", "channels_last") if getattr(self, name)]
        return " ".join([self.precision, *ways])

    def apply(self, steps: TrainingSteps) -> TrainingSteps:
        """Return new steps of the same training that are taken this way."""
        torch.backends.cudnn.benchmark = self.benchmark
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        context = steps.context
        context.precision = "bf16" if self.precision == "bf16" else "float32"
        context.eager = context.eager or ("" if self.recorded else "eager steps are faster")
        _set_layout(steps.network, steps.optimizer, torch.channels_last if self.channels_last else None)
        return TrainingSteps(steps.network, steps.optimizer, steps.method, context, steps.partition, steps.objective)


@dataclass
class FastestStep:
    """The choice of a run. On other devices than GPUs, nothing is measured and nothing changes.

    Attributes:
        choice: The fastest candidate; None before the measurement.
        milliseconds: Milliseconds of a step by candidate.
        clock: Returns seconds.
    """

    choice: Choice | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter

    def for_run(self, steps: int) -> FastestStep | None:
        """Return this object for a run of enough steps, see `WORTH`; None for a shorter run, which measures nothing."""
        return self if steps >= WORTH else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a state file; empty if nothing was measured."""
        if self.choice is None:
            return {}
        return {"where": _where(), "choice": asdict(self.choice), "milliseconds": self.milliseconds}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FastestStep:
        """Undo :meth:`to_json`; a choice of another machine or version is measured again."""
        if values.get("where") != _where():
            return cls()
        return cls(Choice(**values["choice"]), values["milliseconds"])

    def prepare(self, steps: TrainingSteps, first: Sequence[Batch], *, auto: bool) -> TrainingSteps:
        """Return a training's steps in the fastest way, before its first step.

        ``first`` contains the first batch, or nothing in a training without batches. With ``auto`` the precision is
        free (``precision: auto``). Weights, optimizer, memory and random numbers stay as they are.
        """
        if not first or next(steps.network.parameters()).device.type != "cuda":
            return steps
        if self.choice is None:
            self.choice = self.measure(steps, first[0], auto=auto)
            logger.info("fastest training step: %s (%s)", self.choice, self)
        return self.choice.apply(steps)

    def __str__(self) -> str:
        return ", ".join(f"{name} {ms:.1f} ms" for name, ms in self.milliseconds.items())

    def measure(self, steps: TrainingSteps, batch: Batch, *, auto: bool) -> Choice:
        """Time each candidate on a batch, see `prepare`; return the fastest."""
        context, where = steps.context, next(steps.network.parameters()).device
        batch = {key: value.to(where) for key, value in batch.items()}
        eager, precision, iteration = context.eager, context.precision, context.iteration
        context.iteration = context.accumulate - 1  # a batch that ends with an optimizer step
        train_mode(steps.network, steps.partition)
        undo = _undo_function(steps.network, steps.optimizer, context)

        def milliseconds(choice: Choice) -> float:
            timed = choice.apply(steps)
            try:
                for _ in range(WARM_UP + 1):
                    timed.take(batch)
                if choice.recorded and timed.why_eager:  # CUDA refused the recording
                    return math.inf
                torch.cuda.synchronize(where)
                began = self.clock()
                for _ in range(TIMED):
                    timed.take(batch)
                torch.cuda.synchronize(where)
                return 1e3 * (self.clock() - began) / TIMED
            except torch.OutOfMemoryError:
                if choice == first:
                    raise
                return math.inf
            finally:
                undo()
                context.eager, context.precision = eager, precision

        first = Choice(recorded=not steps.why_eager, precision="bf16" if precision == "bf16" else "float32")
        choice, self.milliseconds = fastest(first, milliseconds, auto=auto)
        context.iteration = iteration
        return choice


def fastest(first: Choice, milliseconds: Callable[[Choice], float], *, auto: bool) -> tuple[Choice, dict[str, float]]:
    """Change one property of the best candidate after another; return the best and the time of each candidate.

    ``milliseconds`` returns the time of a step, or infinity if a candidate does not work on this machine.
    """
    best, least = first, milliseconds(first)
    times = {str(first): round(least, 2)} if math.isfinite(least) else {}
    for change in _changes(first, auto):
        if (candidate := replace(best, **change)) == best:
            continue
        if math.isfinite(took := milliseconds(candidate)):
            times[str(candidate)] = round(took, 2)
        if took <= GAIN * least:
            best, least = candidate, took
    return best, times


def _changes(first: Choice, auto: bool) -> Iterator[dict[str, Any]]:
    yield {"benchmark": True}
    yield {"channels_last": True}
    if auto:
        yield from ({"precision": name} for name in ("float32", "tf32"))
        if machine.fast_bf16():
            yield {"precision": "bf16"}
    if first.recorded:
        yield {"recorded": False}


def _undo_function(network: nn.Module, optimizer: torch.optim.Optimizer, context: Context) -> Callable[[], None]:
    """Return a function that restores the current weights, optimizer state, method's memory and random numbers."""
    tensors = [*network.parameters(), *network.buffers()]
    saved = [value.detach().clone() for value in tensors]
    slots = {p: {name: value.clone() for name, value in slot.items()} for p, slot in optimizer.state.items()}
    memory = {name: value.clone() for name, value in context.memory.items()}
    random = RandomState(network, context.generator)

    @torch.no_grad()
    def undo() -> None:
        for value, earlier in zip(tensors, saved, strict=True):
            value.copy_(earlier)
            value.grad = None
        optimizer.state.clear()
        optimizer.state.update({p: {name: v.clone() for name, v in slot.items()} for p, slot in slots.items()})
        context.gathered.clear()
        context.memory.clear()
        context.memory.update({name: value.clone() for name, value in memory.items()})
        random.restore()

    return undo


@torch.no_grad()
def _set_layout(network: nn.Module, optimizer: torch.optim.Optimizer, layout: torch.memory_format | None) -> None:
    """Set the memory format of four-dimensional weights and of their optimizer states."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout or torch.contiguous_format)
        for name, value in optimizer.state.get(parameter, {}).items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                optimizer.state[parameter][name] = torch.empty_like(parameter).copy_(value)


def _where() -> str:
    return f"surgfl {__version__}, {machine.hardware()}"
