"""CAGrad's weights against SciPy's, its direction in plain numbers, the learned weights' step."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from shared_components.core.aggregators import conflict
from shared_components.core.aggregators.conflict import conflict_averse, least_agreement


def drawn(seed, count, size):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(15))
def test_weights_are_as_good_as_scipys(seed):
    changes = drawn(seed, 2 + seed % 5, (2, 3, 50)[seed % 3]) * 10.0 ** -(seed % 4)
    products, c = changes @ changes.T, (0.1, 0.4, 0.9)[seed % 3]
    table = (products / products.diagonal().mean()).numpy()
    start = np.full(len(table), 1 / len(table))
    radius = c * math.sqrt(start @ table @ start)

    def objective(w):
        return w @ table @ start + radius * math.sqrt(max(w @ table @ w, 0) + 1e-16)

    sums_to_one = {"type": "eq", "fun": lambda w: 1 - w.sum()}
    theirs = minimize(objective, start, bounds=[(0, 1)] * len(start), constraints=sums_to_one, options={"ftol": 1e-13})
    ours = least_agreement(products, c)
    assert bool((ours >= 0).all()) and float(ours.sum()) == pytest.approx(1)
    assert objective(ours.numpy()) <= theirs.fun + 1e-9


def test_weights_do_not_depend_on_the_scale_of_changes_and_follow_a_permutation():
    changes = drawn(1, 4, 5)
    products, order = changes @ changes.T, [2, 0, 3, 1]
    weights = least_agreement(products, 0.4)
    torch.testing.assert_close(least_agreement(products * 1e-8, 0.4), weights, atol=1e-9, rtol=0)
    turned = least_agreement(products[order][:, order], 0.4)
    torch.testing.assert_close(turned, weights[order], atol=1e-6, rtol=0)


def test_the_direction_lies_within_c_of_the_mean_and_hurts_less():
    for seed in range(5):
        changes = drawn(seed, 3, 4)
        mean = changes.mean(0)
        averse = conflict_averse(changes @ changes.T, 0.4) @ changes * (1 + 0.4**2)
        assert float((averse - mean).norm()) <= 0.4 * float(mean.norm()) + 1e-9
        assert float((changes @ averse).min()) >= float((changes @ mean).min()) - 1e-9


def test_the_direction_equals_plain_numbers_and_without_conflict_the_mean():
    found = conflict_averse(torch.eye(2, dtype=torch.float64), 0.4)
    assert found.tolist() == pytest.approx([0.5 * 1.4 / 1.16] * 2, abs=1e-9)
    changes = drawn(3, 4, 6)
    assert conflict_averse(changes @ changes.T, 0.0).tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("changes", [[[0.0, 0.0]] * 3, [[1.0, 0.0], [-1.0, 0.0]]])
def test_no_change_and_opposite_changes_give_the_mean(changes):
    rows = torch.tensor(changes, dtype=torch.float64)
    assert (conflict_averse(rows @ rows.T, 0.4) @ rows).tolist() == pytest.approx([0.0, 0.0], abs=1e-9)


def test_products_run_over_all_names():
    pieces = [{"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}, {"a": torch.ones(2), "b": torch.ones(1, 1)}]
    assert conflict.inner_products(pieces, ["a", "b"]).tolist() == [[14, 6], [6, 3]]


def test_a_step_of_the_learned_weights_is_torchs_sgd_on_the_clamped_weights():
    start, slopes = [0.1, 0.999, -0.2], [[0.5, -3.0, 4.0], [0.1, 2.0, -1.0], [-0.7, 0.3, 0.2]]
    leaf = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([leaf], lr=0.01, momentum=0.9, weight_decay=1e-4)
    weights, momentum = leaf.detach().clone(), torch.zeros(3, dtype=torch.float64)
    for slope in slopes:
        given = torch.tensor(slope, dtype=torch.float64)
        optimizer.zero_grad()
        (leaf.clamp(0, 1) * given).sum().backward()
        optimizer.step()
        weights, momentum = conflict.hyper_step(weights, given, momentum, rate=0.01, decay=1e-4, inertia=0.9)
        assert weights.tolist() == pytest.approx(leaf.tolist(), abs=1e-15)
