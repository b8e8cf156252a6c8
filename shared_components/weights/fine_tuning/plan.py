"""Choose input size, batch size and steps of a fine-tuning from the measured speed and the time limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared_components.common.arguments import between
from shared_components.core.training_settings import RENDERED

CPU_BATCH, GPU_BATCH = 4, 8
EPOCHS = 40  # target number of passes over the training frames
FEWEST_STEPS, LEAST_STEPS, MOST_STEPS = 20, 80, 2000  # minimum to train at all; limits of the target
VALIDATIONS, PATIENCE = 12, 5  # validations per training; validations without a better score before early stopping
LARGER = (4 / 3, 2.0, 8 / 3)  # possible factors of the input size of the weights
PICTURES = 6  # predictions for the picture
MOST_MINUTES = 7 * 24 * 60


@dataclass(frozen=True)
class Settings:
    """Options of a fine-tuning; None: chosen automatically. A number out of its range raises ValueError."""

    minutes: float = 5.0  # time limit with scoring; ignored if `steps` is given
    bundle: str = "pvt_fpn"
    start: str = RENDERED  # ``random``, ``rendered`` (the shipped weights) or the path of a checkpoint
    size: tuple[int, int] | None = None  # (height, width) of the network's input
    batch_size: int | None = None
    steps: int | None = None  # maximum; early stopping may end the training before
    seed: int = 2022
    device: str = "auto"  # see `machine.device`

    def __post_init__(self) -> None:
        between("train", "minutes", self.minutes, 0, MOST_MINUTES, ends="(]")
        between("train", "steps", self.steps, 1, 1_000_000, whole=True, null="a number that fits")
        between("train", "batch_size", self.batch_size, 1, 65_536, whole=True, null="a number that fits")
        between("train", "seed", self.seed, 0, 2**63 - 1, whole=True)


@dataclass(frozen=True)
class Counts:
    """Numbers of training, validation and test frames."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class Speed:
    """Measured seconds per step, validated frame and tested frame."""

    step: float
    validation: float
    test: float

    def at(self, pixels: float) -> Speed:
        """Return the seconds for an input with `pixels` times as many pixels."""
        return Speed(self.step * pixels, self.validation * pixels, self.test * pixels)


@dataclass(frozen=True)
class Plan:
    """Steps and sizes of a fine-tuning, with the estimated time."""

    size: tuple[int, int]
    batch_size: int
    steps: int
    every: int  # steps between two validations
    seconds_of_training: float  # with validations
    seconds_of_scoring: float  # before and after the training

    @property
    def seconds(self) -> float:
        return self.seconds_of_training + self.seconds_of_scoring

    def facts(self) -> dict[str, Any]:
        return {"height": self.size[0], "width": self.size[1], "batch_size": self.batch_size, "planned": self.steps}


def automatic_batch_size(frames: int, *, gpu: bool) -> int:
    """Return 4 on a CPU and 8 on a GPU, at most the number of frames, and at least 2."""
    return min(GPU_BATCH if gpu else CPU_BATCH, max(2, frames))


def target_steps(frames: int, batch: int) -> int:
    """Return the steps of `EPOCHS` passes over the frames, within `LEAST_STEPS` and `MOST_STEPS`."""
    return min(MOST_STEPS, max(LEAST_STEPS, math.ceil(EPOCHS * frames / batch)))


def choose_plan(
    settings: Settings,
    counts: Counts,
    speed: Speed,
    *,
    measured_at: tuple[int, int],  # (height, width) of the measured speed, from the options or the weights
    native: tuple[int, int],  # (height, width) of the frames, the maximum
    batch: int,
    stride: int,  # divisor of both sides
) -> Plan:
    """Choose the largest size with all steps within the time limit, or the number of steps at the measured size.

    Raise ValueError if not even `FEWEST_STEPS` fit.
    """
    steps = settings.steps or target_steps(counts.train, batch)
    first, *larger = _sizes(settings, measured_at, native, stride)
    plan = _plan(first, steps, counts, speed, measured_at, batch)
    if settings.steps is None and plan.seconds > 60 * settings.minutes:
        return _shortened(plan, settings, counts, speed.at(_pixels(first, measured_at)), batch)
    for size in larger:
        other = _plan(size, steps, counts, speed, measured_at, batch)
        plan = other if settings.steps is None and other.seconds <= 60 * settings.minutes else plan
    return plan


def _sizes(
    settings: Settings, measured_at: tuple[int, int], native: tuple[int, int], stride: int
) -> Iterator[tuple[int, int]]:
    yield measured_at
    for factor in () if settings.size else LARGER:
        height, width = (round(factor * side / stride) * stride for side in measured_at)
        if height <= native[0] and width <= native[1]:
            yield height, width


def _plan(
    size: tuple[int, int], steps: int, counts: Counts, speed: Speed, measured_at: tuple[int, int], batch: int
) -> Plan:
    scaled = speed.at(_pixels(size, measured_at))
    every = max(1, math.ceil(steps / VALIDATIONS))
    training = steps * scaled.step + (1 + math.ceil(steps / every)) * counts.validation * scaled.validation
    return Plan(size, batch, steps, every, training, _scoring(counts, scaled))


def _shortened(plan: Plan, settings: Settings, counts: Counts, speed: Speed, batch: int) -> Plan:
    other = _scoring(counts, speed) + (1 + VALIDATIONS) * counts.validation * speed.validation
    steps = int((60 * settings.minutes - other) / speed.step)
    if steps < FEWEST_STEPS:
        needed = math.ceil((other + LEAST_STEPS * speed.step) / 60)
        raise ValueError(
            f"{settings.minutes:g} minutes are not enough: a step takes {speed.step:.1f} s here, and scoring takes "
            f"{other:.0f} s; give --minutes {needed}, or a smaller --size than {plan.size[0]}x{plan.size[1]}"
        )
    return _plan(plan.size, steps, counts, speed, plan.size, batch)


def _scoring(counts: Counts, speed: Speed) -> float:
    return (2 * counts.test + PICTURES) * speed.test


def _pixels(size: tuple[int, int], other: tuple[int, int]) -> float:
    return size[0] * size[1] / (other[0] * other[1])
