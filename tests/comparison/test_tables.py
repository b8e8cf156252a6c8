"""Layouts of the papers' tables and their forms."""

import csv
import io

from shared_components.comparison.output import as_latex, as_markdown, as_page, latex_text, scores_csv
from shared_components.comparison.tables import ablation_grid, all_grids, cost_grid, run_grid, score_grid

from .conftest import compared, result


def texts(grid):
    return [[cell.text for cell in row] for row in grid.rows]


def test_scores_are_in_percent_with_deviation_best_and_second(comparison):
    grid = score_grid(comparison, "dice")
    assert grid.head == ("Method", "Average", "a", "b", "Worst site", "Out of federation")
    assert texts(grid) == [
        ["FedAvg", "40.00 ± 0.00", "60.00 ± 14.14", "20.00 ± 14.14", "20.00 ± 14.14", "30.00 ± 14.14"],
        ["PFedSIS*", "65.00 ± 7.07", "70.00 ± 14.14", "60.00 ± 0.00", "60.00 ± 0.00", "10.00 ± 0.00"],
        ["Krum", "–", "–", "–", "–", "–"],
    ]
    assert [[cell.mark for cell in row][1:3] for row in grid.rows] == [["second"] * 2, ["best"] * 2, ["", ""]]
    assert grid.rows[0][5].mark == "best"
    assert "2 seeds" in grid.note and "Krum: too few sites" in grid.note


def test_equal_values_share_a_mark():
    grid = score_grid(compared(result("A", 1, (0.5, 0.5)), result("B", 1, (0.5, 0.5))), "dice")
    assert [row[1].mark for row in grid.rows] == ["best", "best"]


def test_an_ablation_has_ticks_and_the_averages_of_four_metrics():
    rows = (
        result("FedAvg", 1, (0.5, 0.3), ticks=(False, False)),
        result("GPD", 1, (0.8, 0.6), ticks=(True, False)),
    )
    grid = ablation_grid(compared(*rows, layout="ablation", tick_names=("GPD", "SGE")))
    assert grid.head == ("Method", "GPD", "SGE", "Dice (%)", "IoU (%)", "ASSD (px)", "HD95 (px)")
    assert texts(grid)[1] == ["GPD", "✓", "", "70.00", "35.00", "3.00", "6.00"] and grid.labels == 3


def test_costs_are_in_thousands_and_megabytes():
    costs = {"ms_frame": 15.2, "parameters_site": 6_791_657, "parameters_server": 34_542, "bytes_up": 27.2e6}
    costs |= {"bytes_down": 1e6, "seconds_round": 106.0, "seconds_aggregation": 0.25}
    grid = cost_grid(compared(result("PFedSIS", 1, (0.5, 0.5), **costs)))
    assert texts(grid) == [["PFedSIS", "15.20", "6791.657", "34.5", "27.2", "1.0", "106.00", "0.250"]]


def test_every_run_is_traced_and_the_added_time_is_told(comparison):
    grid = run_grid(comparison)
    assert texts(grid)[0] == ["FedAvg", "1", "runs/FedAvg-1/1", "abc", "100", "8"]
    assert texts(grid)[4][2] == "too few sites" and "added 8% to the training; a machine" in grid.note


def test_the_presets_own_table_comes_first():
    rows = (result("A", 1, (0.5, 0.4)), result("B", 1, (0.3, 0.2)))
    titles = {
        layout: all_grids(compared(*rows, layout=layout, tick_names=()))[0].title
        for layout in ("scores", "costs", "ablation")
    }
    assert titles == {"scores": "A title: Dice (%), higher is better", "costs": "Cost", "ablation": "A title"}


def test_markdown_marks_the_best_and_escapes_stars(comparison):
    lines = as_markdown(score_grid(comparison, "dice")).splitlines()
    assert (
        lines[2].startswith("| Method | Average |")
        and lines[3] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    assert lines[5].startswith("| PFedSIS\\* | **65.00 ± 7.07** |")
    assert lines[4].startswith("| FedAvg | *40.00 ± 0.00* |")


def test_latex_escapes_and_closes_what_it_opens(comparison):
    text = as_latex(score_grid(comparison, "dice"))
    assert "\\textbf{65.00 $\\pm$ 7.07}" in text and "\\underline{40.00 $\\pm$ 0.00}" in text
    assert "Dice (\\%)" in text and "\\begin{tabular}{lrrrrr}" in text
    for name in ("table", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 1
    assert all(line.count("&") == 5 for line in text.splitlines() if line.endswith("\\\\") and "&" in line)
    assert latex_text("a_b & 50% ✓") == "a\\_b \\& 50\\% $\\checkmark$"


def test_csv_has_one_line_per_run_site_metric_and_class(comparison):
    rows = list(csv.DictReader(io.StringIO(scores_csv(comparison))))
    assert len(rows) == 4 * 3 * 4 * 2  # runs, sites with the held-out one, metrics, classes with the mean
    assert rows[0] == {
        "label": "FedAvg", "method": "fedavg", "seed": "1", "site": "a", "metric": "dice", "class": "shaft",
        "value": "0.5", "run": "runs/FedAvg-1/1",
    }  # fmt: skip


def test_the_page_needs_nothing_else_and_names_what_failed(comparison):
    page = as_page(comparison, all_grids(comparison))
    assert "http" not in page.replace("http://www.w3.org", "") and "<script" not in page
    assert "4 of 6 runs have a result" in page and "Krum, seed 1: too few sites" in page
    assert page.count("<table>") == len(all_grids(comparison)) and "<svg" in page
