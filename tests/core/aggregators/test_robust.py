"""Median, trimmed mean, Krum and the norm bound against published golden values, scalar loops and their own limits."""

import math
import random
from itertools import permutations, product

import pytest
import torch

from shared_components.core.aggregators import robust
from shared_components.core.aggregators.mean import BLOCK, WeightedMean
from shared_components.core.aggregators.robust import BoundedMean, Krum, TrimmedMean
from shared_components.core.method import Models, Update
from shared_components.core.partition import Partition
from tests.methods.toys import SITES, THETA, shared, step, tensor, updates


def chosen(aggregator, given):
    return step(aggregator, shared(), given).report["krum"]


def scalar_scores(sites, nearest):
    def square(one, other):
        return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))

    others = [sorted(square(own, sites[j]) for j in range(len(sites)) if j != i) for i, own in enumerate(sites)]
    return [sum(squares[:nearest]) for squares in others]


def test_golden_values_of_median_and_krum_whose_ties_go_to_the_first_site():
    assert step(TrimmedMean(), shared(), updates()).models.shared["w"].tolist() == [2.0, 2.0]
    result = step(Krum(1), shared(), updates())
    assert result.report["krum"]["chosen"] == ["site-4"] and result.models.shared["w"].tolist() == SITES[3]
    assert list(result.report["krum"]["scores"].values()) == [4.5, 7.5, 10.5, 3.0, 388.0]
    report = chosen(Krum(1, neighbours="n-f-1"), updates())
    assert list(report["scores"].values()) == [9.5, 20.5, 23.5, 9.5, 616.5] and report["chosen"] == ["site-1"]
    given = [Update(site, 0, {"w": torch.ones(2)}) for site in ("site-10", "site-9", "site-11")]
    assert all(chosen(Krum(0), list(order))["chosen"] == ["site-9"] for order in permutations(given))


@pytest.mark.parametrize("count, trim", [(3, 1), (4, 1), (5, 0), (5, 2), (8, 3), (9, 2)])
def test_the_trimmed_mean_equals_a_scalar_loop(count, trim):
    random.seed(count)
    sites = [[random.gauss(0, 1) for _ in range(7)] for _ in range(count)]
    found = robust.trimmed_mean([torch.tensor(s, dtype=torch.float64) for s in sites], trim)
    for i, value in enumerate(found.tolist()):
        kept = sorted(site[i] for site in sites)[trim : count - trim]
        assert value == pytest.approx(sum(kept) / len(kept), abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 13])
def test_the_median_of_blocks_equals_the_quantile(count):
    torch.manual_seed(count)
    tensors = [torch.randn(3, BLOCK // 2) for _ in range(count)]
    expected = torch.stack(tensors).double().quantile(0.5, dim=0).float()
    found = robust.trimmed_mean(tensors, (count - 1) // 2)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-6)
    assert count % 2 == 0 or torch.equal(found, torch.stack(tensors).median(0).values)


@pytest.mark.parametrize("count, faults", [(3, 0), (5, 1), (6, 1), (7, 2)])
@pytest.mark.parametrize("neighbours, less", [("n-f-2", 2), ("n-f-1", 1)])
def test_krum_equals_a_scalar_loop(count, faults, neighbours, less):
    random.seed(10 * count + faults)
    sites = [[random.gauss(0, 1) for _ in range(6)] for _ in range(count)]
    scores = scalar_scores(sites, count - faults - less)
    report = chosen(Krum(faults, neighbours=neighbours), updates(sites, samples=[1] * count))
    assert list(report["scores"].values()) == pytest.approx(scores, abs=1e-12)
    assert report["chosen"] == [f"site-{scores.index(min(scores)) + 1}"]


def test_krum_compares_all_blocks_and_returns_the_chosen_sites_model_bit_for_bit():
    torch.manual_seed(2)
    sites = [{"a": torch.randn(BLOCK + 7), "b": torch.randn(2, 3), "left_out": torch.randn(2)} for _ in range(4)]
    found = robust.squared_distances(sites, ["a", "b"])
    for i, j in product(range(4), repeat=2):
        expected = sum(float((sites[i][n].double() - sites[j][n].double()).square().sum()) for n in "ab")
        assert found[i][j] == pytest.approx(expected, rel=1e-12) and found[i][j] == found[j][i]
    torch.manual_seed(1)
    given = [Update(f"site-{i}", 0, {"w": torch.randn(100), "n": torch.tensor(i)}) for i in range(5)]
    result = Krum(1).apply({}, Partition(()), Models({"w": torch.zeros(100), "n": torch.tensor(0)}, {}), given)
    site = next(u for u in given if u.site == result.report["krum"]["chosen"][0])
    assert all(torch.equal(result.models.shared[name], site.pieces[name]) for name in ("w", "n"))


def test_multi_krum_averages_the_best_sites_alike_and_all_sites_are_the_plain_mean():
    result = step(Krum(1, keep=2), shared(), updates())  # scores 4.5, 7.5, 10.5, 3.0, 388
    assert result.report["krum"]["chosen"] == ["site-1", "site-4"]
    assert result.models.shared["w"].tolist() == [1.75, 2.25]
    assert chosen(Krum(1, keep=None), updates())["chosen"] == ["site-1", "site-2", "site-3", "site-4"]
    found = step(Krum(0, keep=None), shared(), updates()).models.shared["w"].tolist()
    assert found == pytest.approx([sum(s[i] for s in SITES) / 5 for i in (0, 1)], abs=1e-12)


@pytest.mark.parametrize(("faults", "share", "count", "kept"), [
    (0, 2 / 3, 9, 6), (0, 2 / 3, 8, 5), (0, 2 / 3, 3, 2), (0, 0.5, 5, 3), (0, 0.01, 9, 1), (1, 0.99, 5, 4),
])  # fmt: skip
def test_a_share_below_one_keeps_the_nearest_number_of_sites_but_one_at_least_and_no_faulty_one(
    faults, share, count, kept
):
    report = chosen(Krum(faults, keep=share), updates([[float(i**2), 0.0] for i in range(count)], [1] * count))
    best = sorted(report["scores"], key=report["scores"].__getitem__)[:kept]
    assert report["chosen"] == sorted(best) and Krum(faults, keep=share).min_sites == 2 * faults + 3


@pytest.mark.parametrize("aggregator", [TrimmedMean(), Krum(0)])
def test_mixed_pieces_pass_and_are_not_compared(aggregator):
    """Sites differ in MIXED pieces alone: all scores are 0, and every site keeps its own."""
    models = Models({"w": torch.zeros(1)}, {s: {"p": torch.zeros(1)} for s in "abc"})
    given = [Update(s, 0, {"w": torch.ones(1), "p": torch.tensor([float(ord(s))])}) for s in "abc"]
    result = aggregator.apply({}, Partition(()), models, given)
    assert result.models.shared["w"].tolist() == [1.0] and result.models.mixed == models.mixed
    assert set(result.report.get("krum", {"scores": {}})["scores"].values()) <= {0.0}


@pytest.mark.parametrize("aggregator, count, words", [
    (TrimmedMean(), 2, "a median needs 3 sites or more; this round has 2"),
    (TrimmedMean(1), 2, "trimmed by 1 at each end needs 3 sites or more; this round has 2"),
    (TrimmedMean(2), 4, "needs 5 sites"), (Krum(0), 2, "0 faulty sites needs 3 sites or more; this round has 2"),
    (Krum(1), 4, "1 faulty sites needs 5 sites or more; this round has 4"),
    (Krum(0, keep=4), 3, "keep 4 needs 4 sites"),
])  # fmt: skip
def test_too_few_sites_are_refused(aggregator, count, words):
    with pytest.raises(ValueError, match=words):
        step(aggregator, shared(), updates(SITES[:count]))
    step(aggregator, shared(), updates(SITES[: aggregator.min_sites]))


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


def test_norm_bounds_follow_the_lower_median_over_all_float_pieces():
    report = step(BoundedMean(1.0), shared(), updates([[2.0, 2.0], [1.0, 1e6]])).report["norm_bound"]
    assert report["bound"] == 1.0 and list(report["factors"]) == ["site-2"]
    result = step(BoundedMean(1.0), shared(), updates([THETA] * 3))
    assert result.models.shared["w"].tolist() == THETA and result.report["norm_bound"]["bound"] == 0.0
    start = {"a": tensor([0.0, 0.0]), "b": tensor([[1.0]]), "steps": torch.tensor(0)}
    there = {"a": tensor([2.0, 3.0]), "b": tensor([[7.0]]), "steps": torch.tensor(1000)}
    assert robust.update_norm(there, start) == 7.0  # sqrt(4 + 9 + 36)
    half = robust.shortened(there, start, 0.5)
    assert half["a"].tolist() == [1.0, 1.5] and half["b"].tolist() == [[4.0]] and int(half["steps"]) == 1000
    assert half["a"].dtype == torch.float64
