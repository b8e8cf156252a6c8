"""Early stopping: train until the score on validation frames stops rising, and keep the best weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from shared_components.core.method import Losses

EVERY, PATIENCE = 25, 4  # steps between two validations; validations without a better score that end the training


@dataclass(frozen=True)
class Stopped:
    """How such a training went.

    Attributes:
        losses: Means over the steps taken.
        steps: Taken in all, those after the best weights included.
        before: The score that it began from; None: there are no validation frames.
        best: The score of the weights that were kept.
    """

    losses: Losses
    steps: int
    before: float | None
    best: float | None


def train_to_best(
    network: nn.Module,
    train: Callable[[int], Losses],
    validate: Callable[[], float | None],
    *,
    better: Callable[[float, float], bool],
    budget: int,
) -> Stopped:
    """Train until `PATIENCE` validations brought no better score, and leave the best weights in the network.

    The weights that it begins from are among those that can be kept. Without validation frames the whole budget is
    taken, and the last weights stay.

    Args:
        network: What `train` trains.
        train: Takes a number of steps and returns the mean of each loss term.
        validate: Returns the score now; NaN where nothing could be scored, None where there are no frames.
        better: Whether the first score is better than the second; NaN never is.
        budget: Steps at most.
    """

    def weights() -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in network.state_dict().items()}

    best = before = validate()
    kept, done, idle, totals = weights(), 0, 0, dict[str, float]()
    while done < budget and idle < PATIENCE:
        count = min(EVERY, budget - done)
        for name, value in train(count).items():
            totals[name] = totals.get(name, 0.0) + count * value
        done += count
        if (score := validate()) is None or best is None:
            continue
        idle += 1
        if better(score, best):
            best, kept, idle = score, weights(), 0
    if best is not None:
        network.load_state_dict(kept)
    return Stopped({name: total / done for name, total in totals.items()}, done, before, best)
