"""The mean of bounded updates: golden values by hand, and FedAvg bit for bit where nothing is bounded."""

import math

import pytest
import torch

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.aggregators.norm_bound import BoundedMean, shortened, update_norm
from shared_components.core.method import Models, Update, load_method
from tests.methods.toys import THETA, shared, step, tensor, updates


def test_golden_vector_of_five_sites():
    """The changes are (1, 0), (0, 2), (3, 0), (0.5, 0.5) and (9, -12): norms 1, 2, 3, 0.707 and 15, median 2.

    Bounded, site-3 is at (3, 2) and site-5 at (2.2, 0.4); site-3 counts twice.
    """
    result = step(BoundedMean(1.0), shared(), updates())
    expected = [(2 + 1 + 2 * 3 + 1.5 + 2.2) / 6, (2 + 4 + 2 * 2 + 2.5 + 0.4) / 6]
    assert result.models.shared["w"].tolist() == pytest.approx(expected, abs=1e-12)
    report = result.report["norm_bound"]
    assert report["bound"] == 2.0
    assert list(report["norms"].values()) == pytest.approx([1, 2, 3, math.sqrt(0.5), 15], abs=1e-12)
    assert report["factors"] == {"site-3": pytest.approx(2 / 3), "site-5": pytest.approx(2 / 15)}


@pytest.mark.parametrize("times", [None, 1e9])
def test_no_bound_and_one_that_nobody_reaches_are_fedavg_bit_for_bit(times):
    torch.manual_seed(0)
    start = Models({"w": torch.randn(50), "steps": torch.tensor(3)}, {})
    given = [Update(f"site-{k}", 0, {"w": torch.randn(50), "steps": torch.tensor(k)}, samples=k + 1) for k in range(5)]
    found = step(BoundedMean(times), start, given).models.shared
    expected = step(WeightedMean(), start, given).models.shared
    assert torch.equal(found["w"], expected["w"]) and torch.equal(found["steps"], expected["steps"])
    bounded = step(BoundedMean(1.0), start, given).models.shared
    assert not torch.equal(bounded["w"], expected["w"]) and int(bounded["steps"]) == 4


@pytest.mark.parametrize("length", [1e3, 1e30])
def test_one_site_of_five_moves_the_mean_no_further_than_the_bound_allows(length):
    """Four sites stay within 1; whatever the fifth sends, the mean is within 1 of where the round began."""
    given = updates([[2.0, 2.0], [1.0, 3.0], [0.0, 2.0], [1.0, 1.0], [length, -length]], samples=[1] * 5)
    moved = step(BoundedMean(1.0), shared(), given).models.shared["w"] - tensor(THETA)
    assert float(moved.norm()) <= 1 / 5 + 1e-12
    plain = step(WeightedMean(), shared(), given).models.shared["w"] - tensor(THETA)
    assert float(plain.norm()) > length / 5


def test_of_two_sites_the_longer_one_does_not_lift_the_bound():
    report = step(BoundedMean(1.0), shared(), updates([[2.0, 2.0], [1.0, 1e6]])).report["norm_bound"]
    assert report["bound"] == 1.0 and list(report["factors"]) == ["site-2"]


def test_a_round_in_which_nobody_moved_stays_where_it_is():
    result = step(BoundedMean(1.0), shared(), updates([THETA] * 3))
    assert result.models.shared["w"].tolist() == THETA
    assert result.report["norm_bound"]["bound"] == 0.0


def test_norms_run_over_all_pieces_and_leave_counters_out():
    start = {"a": tensor([0.0, 0.0]), "b": tensor([[1.0]]), "steps": torch.tensor(0)}
    there = {"a": tensor([2.0, 3.0]), "b": tensor([[7.0]]), "steps": torch.tensor(1000)}
    assert update_norm(there, start) == 7.0  # sqrt(4 + 9 + 36)
    half = shortened(there, start, 0.5)
    assert half["a"].tolist() == [1.0, 1.5] and half["b"].tolist() == [[4.0]] and int(half["steps"]) == 1000
    assert half["a"].dtype == torch.float64


@pytest.mark.parametrize("times", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_wrong_bound_is_named(times):
    with pytest.raises(ValueError, match="norm_bound: times is"):
        load_method("norm_bound", times=times)
