"""Two rows video by video: pairs, tests, and their charts and tables."""

import pytest

from shared_components.core.paired_test import paired_test
from shared_components.experiments.comparison.charts import panels
from shared_components.experiments.comparison.plan import Versus
from shared_components.experiments.comparison.tables import all_tables
from shared_components.experiments.comparison.versus import matched, versus, versus_panel, versus_table
from tests.experiments.comparison.conftest import DICE, SITES, compared, result

FRAMES = {"v1": (0.5, 0.7), "v2": (0.2,), "v3": (0.4, 0.4)}  # Dice of their frames


def row(label, seed, more, *, site="a", without=()):
    """A run whose frames at a site are better than `FRAMES` by so much."""
    one = result(label, seed, (0.5, 0.5))
    one.scores["sites"][site]["samples"] = [
        {"video": video, "sample": f"{video}-{i}", "values": {"dice": value + more}}
        for video, values in FRAMES.items() for i, value in enumerate(values) if (video, i) not in without
    ]  # fmt: skip
    return one


def test_frames_are_drawn_and_videos_tested_over_common_seeds_and_frames():
    rows = row("A", 1, 0.1), row("A", 2, 0.3), row("A", 3, 0.9), row("B", 1, 0.0), row("B", 2, 0.0)
    pair = matched(compared(*rows), DICE, "A", "B", SITES)
    assert pair.drawn == (pytest.approx([0.7, 0.9, 0.4, 0.6, 0.6]), pytest.approx([0.5, 0.7, 0.2, 0.4, 0.4]))
    assert pair.tested == (pytest.approx([0.8, 0.4, 0.6]), pytest.approx([0.6, 0.2, 0.4]))
    assert pair.test == paired_test(*pair.tested) and pair.test.least == 0.25
    pair = matched(compared(row("A", 1, 0.1, without=[("v2", 0)]), row("B", 1, 0.0)), DICE, "A", "B", SITES)
    assert len(pair.drawn[0]) == 4 and len(pair.tested[0]) == 2
    assert matched(compared(row("A", 1, 0.1), row("B", 2, 0.0)), DICE, "A", "B", SITES) is None


def test_by_default_the_best_two_are_compared_at_all_sites_and_each_if_videos_were_scored():
    comparison = compared(row("A", 1, 0.1), row("B", 1, 0.0), result("C", 1, (0.1, 0.1)))
    ((one, metric, pair),) = versus(comparison, comparison.groups[0])
    assert metric == DICE
    assert set(one.models) == {"A", "B"} and list(pair) == ["all sites", "a"]
    comparison = compared(result("A", 1, (0.5, 0.5)), result("B", 1, (0.4, 0.4)))
    group = comparison.groups[0]
    assert versus_table(comparison, group) is None and not versus_panel(comparison, group).charts


def test_violins_and_tests_of_named_pairs_are_on_the_page_and_in_the_tables():
    pairs = Versus(("FL", "CEN"), {"few": ("A", "B"), "all": ("C", "B"), "none": ("A", "D")})
    rows = row("A", 1, 0.1), row("B", 1, 0.0), row("C", 1, 0.0)
    comparison = compared(*rows, versus=(pairs,))
    group = comparison.groups[0]
    panel, table = versus_panel(comparison, group), versus_table(comparison, group)
    assert [p.title for p in panels(comparison, group)][1] == panel.title == "Video by video"
    assert "left: FL, right: CEN" in panel.charts[0] and "p 0.25, n 3" in panel.charts[0] and ">few<" in panel.charts[0]
    assert [list(cells) for cells in table.rows] == [
        ["FL / CEN", "few", "Dice (%)", "3", "10.00", "0.25", "0.25"],
        ["FL / CEN", "all", "Dice (%)", "3", "0.00", "1", "1"],
    ]  # fmt: skip
    assert table in all_tables(comparison)
    read = [[one.test for _, _, pair in versus(comparison, group) for one in pair.values()] for _ in range(2)]
    assert all(once is again for once, again in zip(*read, strict=True)), "figure and table compute it once"


def test_a_pair_may_name_its_metric_and_one_that_nobody_scored_by_has_no_violin():
    rows = row("A", 1, 0.1), row("B", 1, 0.0)
    for one, more in zip(rows, (0.2, 0.0), strict=True):
        for sample in one.scores["sites"]["a"]["samples"]:
            sample["values"]["iou"] = sample["values"]["dice"] / 2 + more
    pairs = {"all": ("A", "B")}
    comparison = compared(*rows, versus=tuple(Versus(("FL", "CEN"), pairs, name) for name in ("", "iou", "assd")))
    panel, table = versus_panel(comparison, comparison.groups[0]), versus_table(comparison, comparison.groups[0])
    assert len(panel.charts) == 2 and "Dice" in panel.charts[0] and "IoU" in panel.charts[1]
    differences = {(cells[1], cells[2]): cells[4] for cells in table.rows}
    assert differences["all sites", "Dice (%)"] == "10.00" and differences["all sites", "IoU (%)"] == "25.00"
    assert len({metric for _, metric in differences}) == 2
