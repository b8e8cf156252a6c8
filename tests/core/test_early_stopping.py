"""Training that ends when validation stops rising, on one weight that counts its steps."""

import math

import pytest
from torch import nn

from shared_components.core.card import Metric
from shared_components.core.early_stopping import EVERY, PATIENCE, train_to_best

DICE, RMSE = Metric("dice", "Dice", True), Metric("rmse", "RMSE", False)


def trained(*scores, budget=1000, metric=DICE):
    """Return how the training went, and the number of steps that the weights left have had."""
    network, given = nn.Linear(1, 1, bias=False), iter(scores)
    network.weight.data.zero_()

    def train(steps):
        network.weight.data += steps
        return {"loss": float(network.weight.detach())}  # a mean that tells one stretch from another

    found = train_to_best(network, train, lambda: next(given), better=metric.better, budget=budget)
    return found, int(network.weight)


def test_the_best_weights_are_kept_and_not_the_last():
    found, steps = trained(0.1, 0.2, 0.5, 0.4, 0.5, 0.3, 0.2)
    assert (steps, found.steps) == (2 * EVERY, (2 + PATIENCE) * EVERY)
    assert (found.before, found.best) == (0.1, 0.5)


def test_weights_that_no_training_betters_stay():
    found, steps = trained(0.9, 0.2, 0.5, 0.4, 0.5)
    assert (steps, found.steps, found.best) == (0, PATIENCE * EVERY, 0.9)


def test_an_error_is_better_when_it_is_lower():
    _, steps = trained(5.0, 4.0, 6.0, 4.5, 7.0, 4.0, metric=RMSE)
    assert steps == EVERY


def test_the_budget_ends_it_within_a_stretch_and_losses_are_means_over_steps():
    found, steps = trained(0.1, 0.2, 0.3, budget=EVERY + 5)
    assert steps == found.steps == EVERY + 5
    total = EVERY * EVERY + 5 * (EVERY + 5)
    assert found.losses == {"loss": pytest.approx(total / (EVERY + 5))}


def test_without_validation_frames_the_budget_is_taken_and_the_last_weights_stay():
    found, steps = trained(*[None] * 9, budget=7 * EVERY)
    assert (steps, found.steps, found.before, found.best) == (7 * EVERY, 7 * EVERY, None, None)


def test_a_score_of_nothing_is_no_better_and_any_number_is_better_than_it():
    _, steps = trained(math.nan, 0.1, math.nan, math.nan, math.nan, math.nan)
    assert steps == EVERY


def test_no_budget_trains_nothing():
    found, steps = trained(0.4, budget=0)
    assert (steps, found.steps, found.losses) == (0, 0, {})
