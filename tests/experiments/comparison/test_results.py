"""Means, deviations and tests against hand-worked values and scipy."""

import math

import pytest
from scipy import stats

from shared_components.experiments.comparison import results
from shared_components.experiments.comparison.results import mean_and_deviation
from tests.experiments.comparison.conftest import DICE, HD95, compared, result


def contest(comparison, metric):
    return results.contest(comparison, comparison.groups[0], metric)


def paired(a, b):
    """Two rows A and B, by seeds from 1 on with the same value at both sites."""
    return compared(*(result(label, s, (v, v)) for label, row in (("A", a), ("B", b)) for s, v in enumerate(row, 1)))


def test_average_and_worst_site_of_a_run():
    one = result("FedAvg", 1, (0.5, 0.25))
    group = compared(one).groups[0]
    assert one.average(group, DICE) == 0.375 and one.worst(group, DICE) == 0.25
    assert one.average(group, HD95) == 12.5 and one.worst(group, HD95) == 15.0


def test_deviation_is_the_sample_one_and_absent_for_one_seed():
    assert mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    mean, deviation = mean_and_deviation([1.0, math.nan])
    assert mean == 1.0 and math.isnan(deviation)
    assert all(map(math.isnan, mean_and_deviation([])))


def test_the_best_two_are_paired_by_seed():
    """A seed's value is the mean over its sites, of which there are two."""
    best, second = [0.8, 0.6, 0.7, 0.5], [0.5, 0.3, 0.7, 0.1]
    rows = [result("A", seed, (value - 0.1, value + 0.1)) for seed, value in enumerate(best, 1)]
    rows += [result("B", seed, (value + 0.1, value - 0.1)) for seed, value in enumerate(second, 1)]
    found = contest(compared(*rows), DICE)
    assert (found.best, found.second, found.seeds) == ("A", "B", 4)
    assert found.difference == pytest.approx(0.25)
    assert found.t_test == pytest.approx(stats.ttest_rel(best, second).pvalue)
    assert found.wilcoxon == pytest.approx(stats.wilcoxon(best, second).pvalue)
    differences = [a - b for a, b in zip(best, second, strict=True)]  # and by hand: t = mean / (s / sqrt n)
    spread = math.sqrt(sum((d - 0.25) ** 2 for d in differences) / 3)
    assert stats.t.sf(0.25 / (spread / 2), 3) * 2 == pytest.approx(found.t_test)


def test_by_hand_a_p_value_of_four_seeds():
    """Differences 1, 2, 3, 4 tenths: t = 2.5 / (1.29099 / 2) = 3.873 on 3 degrees; all ranks one way: 2 / 2^4."""
    found = contest(paired([0.5 + 0.1 * s for s in (1, 2, 3, 4)], [0.5] * 4), DICE)
    t = 3.8729833462
    p = 1 - 2 / math.pi * (math.atan(t / 3**0.5) + (t / 3**0.5) / (1 + t * t / 3))  # Student's t with 3 degrees
    assert found.t_test == pytest.approx(p, rel=1e-6) and found.wilcoxon == 2 / 2**4


def test_more_sites_are_no_more_repetitions():
    """The sites' own differences vary in no seed alike, and their number changes nothing."""
    rows = [result("A", s, (0.6, 0.5 + 0.1 * s)) for s in (1, 2)] + [result("B", s, (0.5, 0.4)) for s in (1, 2)]
    found = contest(compared(*rows), DICE)
    assert (found.seeds, found.untested) == (2, "fewer than 3 seeds") and math.isnan(found.t_test)


def test_equal_rows_and_constant_differences_are_not_tested():
    assert contest(paired([0.5] * 3, [0.5] * 3), DICE).untested == "no difference"
    assert contest(paired([0.75] * 3, [0.5] * 3), DICE).untested == "all differences equal"


def test_a_seed_that_one_of_the_two_lacks_is_not_paired():
    rows = [result("A", s, (0.5, 0.4 + 0.1 * s)) for s in (1, 2, 3)]
    rows += [result("B", s, (0.3, 0.1 * s)) for s in (1, 2)] + [result("B", 3, None)]
    assert contest(compared(*rows), DICE).seeds == 2


def test_lower_distances_win(comparison):
    assert contest(comparison, HD95).best == "PFedSIS*"


def test_too_few_seeds_have_no_p_value_and_one_row_no_contest():
    few = contest(compared(result("A", 1, (0.5, 0.4)), result("B", 1, (0.3, 0.2))), DICE)
    assert few.seeds == 1 and math.isnan(few.t_test) and math.isnan(few.wilcoxon)
    assert few.untested == "fewer than 3 seeds"
    assert contest(compared(result("A", 1, (0.5, 0.4))), DICE) is None
