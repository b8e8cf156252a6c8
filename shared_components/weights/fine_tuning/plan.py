"""Choose input size, batch size and steps of a fine-tuning from the measured speed and the time limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared_components.common.arguments import between
from shared_components.core.initial_weights import RENDERED

BATCH, BATCH_OF_GPU = 4, 8
EPOCHS = 40  # passes over the training frames that are wanted
FEWEST_STEPS, LEAST_STEPS, MOST_STEPS = 20, 80, 2000  # below which nothing is trained; that are wanted of few frames
VALIDATIONS, PATIENCE = 12, 5  # of all steps; without a better score, which end the training
LARGER = (4 / 3, 2.0, 8 / 3)  # multiples of the size that the weights were trained at
PICTURES = 6  # frames that are predicted once more to be drawn
MOST_MINUTES = 7 * 24 * 60


@dataclass(frozen=True)
class Settings:
    """Options of a fine-tuning; None: chosen automatically.

    Attributes:
        minutes: Time limit, scoring included; ignored if `steps` is given.
        start: ``random``, ``rendered`` (the shipped weights) or the path of a checkpoint.
        size: (height, width) of the network's input.
        steps: Maximum number of steps; training may stop earlier.
        device: As `machine.device` takes it.

    Raises:
        ValueError: A number is out of its range.
    """

    minutes: float = 5.0
    bundle: str = "pvt_fpn"
    start: str = RENDERED
    size: tuple[int, int] | None = None
    batch_size: int | None = None
    steps: int | None = None
    seed: int = 2022
    device: str = "auto"

    def __post_init__(self) -> None:
        between("train", "minutes", self.minutes, 0, MOST_MINUTES, ends="(]")
        between("train", "steps", self.steps, 1, 1_000_000, whole=True, null="a number that fits")
        between("train", "batch_size", self.batch_size, 1, 65_536, whole=True, null="a number that fits")
        between("train", "seed", self.seed, 0, 2**63 - 1, whole=True)


@dataclass(frozen=True)
class Counts:
    """How many frames train, are validated and are tested."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class Speed:
    """Measured seconds: of a step, and of a validated and a tested frame."""

    step: float
    validation: float
    test: float

    def at(self, pixels: float) -> Speed:
        """Return the seconds of an input of so many times the pixels."""
        return Speed(self.step * pixels, self.validation * pixels, self.test * pixels)


@dataclass(frozen=True)
class Plan:
    """Steps and sizes of a fine-tuning, with the estimated time.

    Attributes:
        every: Steps between two validations.
        seconds_of_training: Estimated, for steps and validations; likewise `seconds_of_scoring`, before and after.
    """

    size: tuple[int, int]
    batch_size: int
    steps: int
    every: int
    seconds_of_training: float
    seconds_of_scoring: float

    @property
    def seconds(self) -> float:
        """Estimated total time."""
        return self.seconds_of_training + self.seconds_of_scoring

    def facts(self) -> dict[str, Any]:
        """Return what is recorded."""
        return {"height": self.size[0], "width": self.size[1], "batch_size": self.batch_size, "planned": self.steps}


def batch_of(settings: Settings, frames: int, *, gpu: bool) -> int:
    """Return the batch: 4 frames of a processor, 8 of an accelerator, and no more than there are, but two."""
    return settings.batch_size or min(BATCH_OF_GPU if gpu else BATCH, max(2, frames))


def wanted_steps(frames: int, batch: int) -> int:
    """Return the steps of `EPOCHS` passes over the frames, within `LEAST_STEPS` and `MOST_STEPS`."""
    return min(MOST_STEPS, max(LEAST_STEPS, math.ceil(EPOCHS * frames / batch)))


def choose_plan(
    settings: Settings,
    counts: Counts,
    speed: Speed,
    *,
    measured_at: tuple[int, int],
    native: tuple[int, int],
    batch: int,
    stride: int,
) -> Plan:
    """Choose the largest size whose wanted steps fit into the minutes, else as many steps as do.

    Args:
        settings: What is given is not chosen.
        counts: Of the frames.
        speed: Measured at the size ``measured_at`` with this ``batch``.
        measured_at: (height, width): what is given, or the size that the weights were trained at.
        native: (height, width) of the frames, beyond which no size is chosen.
        batch: Frames of a step.
        stride: Both sides are multiples of it.

    Raises:
        ValueError: Not even `FEWEST_STEPS` fit.
    """
    wanted = settings.steps or wanted_steps(counts.train, batch)
    first, *larger = _sizes(settings, measured_at, native, stride)
    plan = _plan(first, wanted, counts, speed, measured_at, batch)
    if settings.steps is None and plan.seconds > 60 * settings.minutes:
        return _shortened(plan, settings, counts, speed.at(_pixels(first, measured_at)), batch)
    for size in larger:
        other = _plan(size, wanted, counts, speed, measured_at, batch)
        plan = other if settings.steps is None and other.seconds <= 60 * settings.minutes else plan
    return plan


def _sizes(
    settings: Settings, measured_at: tuple[int, int], native: tuple[int, int], stride: int
) -> Iterator[tuple[int, int]]:
    yield measured_at
    for rung in () if settings.size else LARGER:
        height, width = (round(rung * side / stride) * stride for side in measured_at)
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
    """Take as many steps as the minutes have, about."""
    validating = (1 + VALIDATIONS) * counts.validation * speed.validation
    other = _scoring(counts, speed) + validating
    steps = int((60 * settings.minutes - other) / speed.step)
    if steps < FEWEST_STEPS:
        needed = math.ceil((other + LEAST_STEPS * speed.step) / 60)
        raise ValueError(
            f"{settings.minutes:g} minutes are not enough: a step takes {speed.step:.1f} s here, and scoring the "
            f"frames {other:.0f} s; give --minutes {needed}, or a smaller --size than "
            f"{plan.size[0]}x{plan.size[1]}"
        )
    return _plan(plan.size, steps, counts, speed, plan.size, batch)


def _scoring(counts: Counts, speed: Speed) -> float:
    return (2 * counts.test + PICTURES) * speed.test


def _pixels(size: tuple[int, int], other: tuple[int, int]) -> float:
    return size[0] * size[1] / (other[0] * other[1])
