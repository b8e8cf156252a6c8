"""Learning rates over all rounds: a warm-up, then constant, a cosine (Loshchilov and Hutter, ICLR 2017, without
restarts), or a polynomial, as GynSurg has it.

A step's multiple is a pure function of its place in the whole federation, so that a resumed run has the same: round,
and fraction of it, whether rounds are counted in iterations or in epochs. MAE's code counts a place in epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from shared_components.core.training_settings import Training

POWER = 0.9  # of the polynomial
UNSCHEDULED = "unscheduled"  # of an optimizer's group: the learning rate that the schedule multiplies

Pace = Callable[[float], float]
"""The multiple of the learning rates at a place of a round, from 0 to 1."""


def multiple(training: Training, place: float, rounds: int) -> float:
    """Return the multiple of the learning rates at a place of ``rounds`` rounds, from 0 to their number.

    It rises from 0 in a line over the warm-up. The cosine or the polynomial then falls from 1 to
    least_learning_rate / learning_rate, at the end of the last round.
    """
    warmup = min(training.warmup_rounds, rounds)
    if place < warmup:
        return place / warmup
    if training.schedule == "constant" or not training.learning_rate:
        return 1.0
    least, done = training.least_learning_rate / training.learning_rate, (place - warmup) / max(rounds - warmup, 1e-9)
    left = max(1.0 - done, 0.0)
    share = left**POWER if training.schedule == "polynomial" else 0.5 * (1 - math.cos(math.pi * left))
    return least + (1 - least) * share


def pace_of(training: Training, *, round: int, rounds: int, rate: float | None = None) -> Pace | None:
    """Return the multiples within one round, from 0; None where the rates never change.

    ``rate`` replaces them by one for the whole round.
    """
    if rate is not None:
        return lambda fraction: rate
    if training.schedule == "constant" and not training.warmup_rounds:
        return None
    return partial(_within, training, round, rounds)


def _within(training: Training, round: int, rounds: int, fraction: float) -> float:
    return multiple(training, round + fraction, rounds)


def set_rates(optimizer: torch.optim.Optimizer, times: float) -> None:
    """Set every group's learning rate to a multiple of what it was without a schedule."""
    for group in optimizer.param_groups:
        group["lr"] = times * group.setdefault(UNSCHEDULED, group["lr"])
