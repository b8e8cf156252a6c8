"""Curves over rounds and costs of a comparison, from numbers worked by hand."""

from dataclasses import replace

import pytest

from shared_components.experiments.comparison import charts
from shared_components.experiments.comparison.charts import cost_panel, curve_panel, panels, score_panel
from shared_components.reporting.axes import COLOURS
from tests.experiments.comparison.conftest import DICE, SITES, illustrated


@pytest.fixture
def few(tmp_path):
    return illustrated(tmp_path, 3)


def test_curves_are_means_over_sites_and_then_over_seeds(few):
    """Methods 0 and 2 as two seeds of one row: at site a 0.10 and 0.14, at b half of it, in round r (r + 1) / 4."""
    [group] = few.groups
    mean, worst = charts._over_rounds([few.results[0], few.results[2]], group, DICE)
    assert mean == pytest.approx({r: 0.75 * 0.12 * (r + 1) / 4 for r in range(4)})
    assert worst == pytest.approx({r: 0.5 * 0.12 * (r + 1) / 4 for r in range(4)})


def test_a_round_that_one_seed_lacks_is_the_others(few):
    [group] = few.groups
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


def test_scores_have_every_site_and_seed(few):
    [group] = few.groups
    panel = score_panel(few, group)
    for svg in (*panel.charts, *panel.narrow):
        assert svg.count("<circle") == 3 * 2 and "<title>Method 1, b: 0.06000</title>" in svg


def test_where_lower_is_better_the_text_says_so(two_tasks):
    depth = next(group for group in two_tasks.groups if group.card.kind == "depth")
    assert "Down and left is good" in cost_panel(two_tasks, depth).text
    assert "RMSE mm, lower is better" in cost_panel(two_tasks, depth).charts[0]
