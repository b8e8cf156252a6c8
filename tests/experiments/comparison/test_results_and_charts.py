"""Means, deviations, tests, curves over rounds and costs: against values worked by hand, and scipy."""

import math
from dataclasses import replace

import pytest
from scipy import stats

from shared_components.experiments.comparison import charts, results
from shared_components.experiments.comparison.charts import cost_panel, curve_panel, panels, score_panel
from shared_components.experiments.comparison.results import mean_and_deviation
from shared_components.reporting.axes import COLOURS
from tests.experiments.comparison.conftest import DICE, HD95, SITES, compared, illustrated, result


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
    assert (found.seeds, found.untested) == (2, "fewer than 3 seeds")
    assert math.isnan(found.t_test) and math.isnan(found.wilcoxon)


def test_equal_rows_and_constant_differences_are_not_tested_and_one_row_has_no_contest():
    assert contest(paired([0.5] * 3, [0.5] * 3), DICE).untested == "no difference"
    assert contest(paired([0.75] * 3, [0.5] * 3), DICE).untested == "all differences equal"
    assert contest(compared(result("A", 1, (0.5, 0.4))), DICE) is None


def test_a_seed_that_one_of_the_two_lacks_is_not_paired():
    rows = [result("A", s, (0.5, 0.4 + 0.1 * s)) for s in (1, 2, 3)]
    rows += [result("B", s, (0.3, 0.1 * s)) for s in (1, 2)] + [result("B", 3, None)]
    assert contest(compared(*rows), DICE).seeds == 2


@pytest.fixture
def few(tmp_path):
    return illustrated(tmp_path, 3)


def test_curves_are_means_over_sites_and_then_over_the_seeds_that_have_the_round(few):
    """Methods 0 and 2 as two seeds of one row: at site a 0.10 and 0.14, at b half of it, in round r (r + 1) / 4."""
    [group] = few.groups
    mean, worst = charts._over_rounds([few.results[0], few.results[2]], group, DICE)
    assert mean == pytest.approx({r: 0.75 * 0.12 * (r + 1) / 4 for r in range(4)})
    assert worst == pytest.approx({r: 0.5 * 0.12 * (r + 1) / 4 for r in range(4)})
    short = replace(few.results[0].records, rows={site: {0: {"metrics": {"dice": {"mean": 0.9}}}} for site in SITES})
    mean, _ = charts._over_rounds([replace(few.results[0], records=short), few.results[2]], group, DICE)
    assert mean[0] == pytest.approx((0.9 + 0.75 * 0.14 / 4) / 2) and mean[3] == pytest.approx(0.75 * 0.14)


def test_few_methods_share_a_chart_and_many_have_one_each(few, tmp_path):
    [group] = few.groups
    together = curve_panel(few, group)
    assert len(together.charts) == 2 and [name for _, name in together.legend] == few.labels
    assert together.columns == len(together.narrow) == 2
    many = illustrated(tmp_path / "many", COLOURS + 1)
    apart = curve_panel(many, *many.groups)
    assert apart.columns == 0 and len(apart.charts) == COLOURS + 1 and len(apart.legend) == 3


def test_runs_without_records_have_no_curves(comparison):
    [group] = comparison.groups
    assert [panel.title for panel in panels(comparison, group)] == ["Scores", "Cost and score"]


def test_costs_are_megabytes_of_both_directions_and_the_slowest_sites_seconds(few):
    [group] = few.groups
    megabytes, seconds = cost_panel(few, group).charts
    assert "<title>Method 2: 0.1050 at 3.000, worst site 0.07000</title>" in megabytes
    assert "<title>Method 2: 0.1050 at 7.000, worst site 0.07000</title>" in seconds
    panel = score_panel(few, group)  # has every site and seed
    for svg in (*panel.charts, *panel.narrow):
        assert svg.count("<circle") == 3 * 2 and "<title>Method 1, b: 0.06000</title>" in svg


def test_where_lower_is_better_the_text_says_so(two_tasks):
    depth = next(group for group in two_tasks.groups if group.card.kind == "depth")
    panel = cost_panel(two_tasks, depth)
    assert "Down and left is good" in panel.text and "RMSE mm, lower is better" in panel.charts[0]
