"""Compute learning-rate schedules over all rounds: warm-up, then constant, cosine or polynomial decay.

The cosine follows Loshchilov and Hutter (ICLR 2017, without restarts), the polynomial GynSurg. The factor of a step
depends only on its position in the federation, so that a resumed run has the same learning rates.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from shared_components.core.training_settings import Training

POWER = 0.9  # exponent of the polynomial decay
UNSCHEDULED = "unscheduled"  # key of an optimizer's group: learning rate before the schedule

Pace = Callable[[float], float]  # function from the position in a round, 0 to 1, to the factor of the learning rates


def multiple(training: Training, place: float, rounds: int) -> float:
    """Return the factor of the learning rates at a position ``place`` from 0 to ``rounds``.

    The factor rises linearly from 0 during the warm-up. Cosine and polynomial decay then fall from 1 to
    least_learning_rate / learning_rate at the end of the last round.
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
    """Return the factors within a round (from 0), constant with ``rate``, or None if learning rates never change."""
    if rate is not None:
        return lambda fraction: rate
    if training.schedule == "constant" and not training.warmup_rounds:
        return None
    return lambda fraction: multiple(training, round + fraction, rounds)


def set_rates(optimizer: torch.optim.Optimizer, times: float) -> None:
    for group in optimizer.param_groups:
        write_rate(group, times * group.setdefault(UNSCHEDULED, group["lr"]))


def write_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of an optimizer's group; a rate in a tensor, which CUDA graphs read, stays that tensor."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
