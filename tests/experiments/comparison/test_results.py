"""Means, deviations, tests, the verdict, curves and costs: against values worked by hand, and scipy."""

import math
from dataclasses import replace

import pytest
from scipy import stats

from shared_components.experiments.comparison import charts, results
from shared_components.experiments.comparison.charts import cost_panel, curve_panel, panels, score_panel
from shared_components.experiments.comparison.output import as_page
from shared_components.experiments.comparison.results import _holm, _p_value, verdict
from shared_components.experiments.comparison.tables import score_table
from shared_components.reporting.axes import COLOURS
from tests.experiments.comparison.conftest import DICE, SITES, compared, illustrated, result


def contest(comparison, metric):
    return results.contest(comparison, comparison.groups[0], metric)


def paired(a, b):
    """Two rows A and B, by seeds from 1 on with the same value at both sites."""
    return compared(*(result(label, s, (v, v)) for label, row in (("A", a), ("B", b)) for s, v in enumerate(row, 1)))


def test_the_best_two_are_paired_by_seed():
    """A seed's value is the mean over its two sites."""
    best, second = [0.8, 0.6, 0.7, 0.5], [0.5, 0.3, 0.7, 0.1]
    rows = [result("A", seed, (value - 0.1, value + 0.1)) for seed, value in enumerate(best, 1)]
    rows += [result("B", seed, (value + 0.1, value - 0.1)) for seed, value in enumerate(second, 1)]
    outcome = contest(compared(*rows), DICE)
    assert (outcome.best, outcome.second, outcome.seeds) == ("A", "B", 4)
    assert outcome.difference == pytest.approx(0.25)
    assert outcome.t_test == pytest.approx(stats.ttest_rel(best, second).pvalue)
    assert outcome.wilcoxon == pytest.approx(stats.wilcoxon(best, second).pvalue)


def test_by_hand_a_p_value_of_four_seeds():
    """Differences 1, 2, 3, 4 tenths: t = 2.5 / (1.29099 / 2) = 3.873 on 3 degrees; all ranks one way: 2 / 2^4."""
    outcome = contest(paired([0.5 + 0.1 * s for s in (1, 2, 3, 4)], [0.5] * 4), DICE)
    t = 3.8729833462
    p = 1 - 2 / math.pi * (math.atan(t / 3**0.5) + (t / 3**0.5) / (1 + t * t / 3))  # Student's t with 3 degrees
    assert outcome.t_test == pytest.approx(p, rel=1e-6) and outcome.wilcoxon == 2 / 2**4


def test_sites_are_no_repetitions_and_equal_rows_or_missing_seeds_are_not_tested():
    """The sites' own differences vary in no seed alike, and their number changes nothing."""
    rows = [result("A", s, (0.6, 0.5 + 0.1 * s)) for s in (1, 2)] + [result("B", s, (0.5, 0.4)) for s in (1, 2)]
    outcome = contest(compared(*rows), DICE)
    assert (outcome.seeds, outcome.untested) == (2, "fewer than 3 seeds")
    assert math.isnan(outcome.t_test) and math.isnan(outcome.wilcoxon)
    assert contest(paired([0.5] * 3, [0.5] * 3), DICE).untested == "no difference"
    assert contest(paired([0.75] * 3, [0.5] * 3), DICE).untested == "all differences equal"
    assert contest(compared(result("A", 1, (0.5, 0.4))), DICE) is None
    rows = [result("A", s, (0.5, 0.4 + 0.1 * s)) for s in (1, 2, 3)]
    rows += [result("B", s, (0.3, 0.1 * s)) for s in (1, 2)] + [result("B", 3, None)]
    assert contest(compared(*rows), DICE).seeds == 2


@pytest.fixture
def few(tmp_path):
    return illustrated(tmp_path, 3)


def test_curves_are_means_over_sites_and_then_over_the_seeds_that_have_the_round(few):
    """Methods 0 and 2 as two seeds of a row: at site a 0.10 and 0.14, at b half of it, in round r (r + 1) / 4."""
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


def test_costs_are_megabytes_of_both_directions_and_the_slowest_sites_seconds(few, two_tasks):
    [group] = few.groups
    megabytes, seconds = cost_panel(few, group).charts
    assert "<title>Method 2: 0.1050 at 3.000, worst site 0.07000</title>" in megabytes
    assert "<title>Method 2: 0.1050 at 7.000, worst site 0.07000</title>" in seconds
    panel = score_panel(few, group)  # has every site and seed
    for svg in (*panel.charts, *panel.narrow):
        assert svg.count("<circle") == 3 * 2 and "<title>Method 1, b: 0.06000</title>" in svg
    panel = cost_panel(two_tasks, next(group for group in two_tasks.groups if group.card.kind == "depth"))
    assert "Down and left is good" in panel.text and "RMSE mm, lower is better" in panel.charts[0]


def sentence(**rows: tuple[float | None, ...]) -> str:
    """Return the verdict on rows by their Dice in each seed, the same at both sites."""
    comparison = compared(*(
        result(label, seed, None if dice is None else (dice, dice))
        for label, values in rows.items()
        for seed, dice in enumerate(values, start=1)
    ))  # fmt: skip
    return verdict(comparison, comparison.groups[0])


def test_the_best_row_is_told_from_those_that_it_beats_in_every_seed_and_not_from_the_others():
    text = sentence(A=(0.60, 0.62, 0.64), B=(0.50, 0.51, 0.52), C=(0.60, 0.57, 0.66))
    assert text.startswith("A has the highest mean Dice (%) over the sites, 62.00. It differs beyond chance from B, ")
    assert "and not from C (paired t-test over 3 seeds, corrected by Holm for 2 rows, p < 0.05)." in text
    assert "differs from no other row beyond chance" in sentence(A=(0.6, 0.7, 0.5), B=(0.5, 0.72, 0.5))


def test_p_has_two_degrees_of_freedom_and_holm_stops_at_the_first_insignificant_row():
    t = 0.11 / (0.01 / math.sqrt(3))  # of the differences 0.10, 0.11 and 0.12
    assert _p_value([(0.6, 0.5), (0.62, 0.51), (0.64, 0.52)]) == pytest.approx(1 - t / math.sqrt(t * t + 2))
    assert _p_value([(0.75, 0.5)] * 3) == _p_value([(0.9, 0.1)] * 2) == 1.0
    assert _holm({"a": 0.03, "b": 0.01, "c": 0.02}) == ["a", "b", "c"]  # below 0.05 / 1, 0.05 / 3 and 0.05 / 2
    assert _holm({"a": 0.01, "b": 0.03, "c": 0.03}) == ["a"]


def test_few_seeds_claim_nothing_and_rows_are_ranked_at_common_seeds():
    assert sentence(A=(0.6, 0.6), B=(0.1, 0.2)).endswith("Too few seeds for a test: 2 of 3.")
    assert sentence(A=(0.6,), B=(None,)) == ""
    # A is the better one in its only seed, where B is better still in the same.
    lone = sentence(A=(0.90, None, None), B=(0.95, 0.80, 0.80))
    assert lone.startswith("B has the highest mean Dice (%) over the sites, 95.00. A follows with 90.00. Too few ")
    assert "paired t-test over 3 seeds" in sentence(A=(0.60, 0.62, 0.64), B=(0.50, 0.51, 0.52), C=(None, None, None))
    outcome = compared(*(result("A", 1, (0.9, 0.9)), *(result("B", seed, (0.8, 0.8)) for seed in (1, 2))))
    table = score_table(outcome, outcome.groups[0], outcome.groups[0].first)
    assert "Ranks use only the seeds that all rows with a number have" in table.note


def test_the_page_opens_with_its_title_and_the_sentence(comparison):
    head = as_page(comparison).split("</header>")[0].split("<h1>")[1]
    assert head.startswith(comparison.title)
    assert "PFedSIS* has the highest mean Dice (%) over the sites, 65.00. FedAvg follows with 40.00. Too few" in head
