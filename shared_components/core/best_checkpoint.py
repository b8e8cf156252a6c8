"""Best checkpoint of sites, bundles and `train_to_best`: compare validation scores, and stop early."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from shared_components.core.card import Metric
from shared_components.core.method import Losses


def is_best(metric: Metric, score: float, best: float | None) -> bool:
    """Return whether a validation score is better than the best score so far (None: there is none); NaN never is."""
    return metric.better(score, math.nan if best is None else best)


EVERY, PATIENCE = 25, 4  # steps between validations; validations without improvement before training stops


@dataclass(frozen=True)
class TrainedToBest:
    """Result of training with early stopping."""

    losses: Losses  # mean losses over all steps
    steps: int  # number of steps, including steps after the best weights
    before: float | None  # validation score before training; None without validation frames
    best: float | None  # validation score of the final weights


def train_to_best(
    network: nn.Module,
    train: Callable[[int], Losses],
    validate: Callable[[], float | None],
    *,
    metric: Metric,
    budget: int,
    every: int = EVERY,
    accumulate: int = 1,
    patience: int = PATIENCE,
    stop: Callable[[], bool] = lambda: False,
) -> TrainedToBest:
    """Train with early stopping and load the best weights into the network.

    The initial weights can also be the best weights. Without validation frames, training uses the whole ``budget`` of
    steps and keeps the last weights. ``train`` trains a number of steps and returns the mean of each loss term.
    ``validate`` returns the score; NaN if nothing could be scored, None without frames. Validations are ``every``
    steps, rounded to a multiple of ``accumulate``, the batches per optimizer step. Training stops after ``patience``
    validations without improvement, or if ``stop`` returns True.
    """

    def weights() -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in network.state_dict().items()}

    every = max(1, round(every / accumulate)) * accumulate
    best = before = validate()
    kept, done, idle, totals = weights(), 0, 0, dict[str, float]()
    while done < budget and idle < patience and not stop():
        count = min(every, budget - done)
        for name, value in train(count).items():
            totals[name] = totals.get(name, 0.0) + count * value
        done += count
        if (score := validate()) is None or best is None:
            continue
        idle += 1
        if is_best(metric, score, best):
            best, kept, idle = score, weights(), 0
    if best is not None:
        network.load_state_dict(kept)
    return TrainedToBest({name: total / done for name, total in totals.items()}, done, before, best)
