"""Layouts of the papers' tables and their forms."""

import csv
import io
from dataclasses import replace

import pytest

from shared_components.experiments.comparison import tables
from shared_components.experiments.comparison.output import (
    FILES,
    as_page,
    refuse_foreign,
    scores_csv,
    set_aside,
    summary_csv,
    write_all,
)
from shared_components.experiments.comparison.plan import SCALES
from shared_components.experiments.comparison.tables import all_tables, cost_table, run_table
from shared_components.reporting.tables import as_latex, as_markdown, latex_text
from tests.experiments.comparison.conftest import ASSD, DICE, compared, marks, result, texts


def score_table(comparison, metric):
    return tables.score_table(comparison, comparison.groups[0], metric)


def ablation_table(comparison):
    return tables.ablation_table(comparison, comparison.groups[0])


def test_scores_are_in_percent_with_deviation_best_and_second(comparison):
    table = score_table(comparison, DICE)
    assert table.head == ("Method", "Average", "a", "b", "Worst site", "Out of federation")
    assert texts(table) == [
        ["FedAvg", "40.00 ± 0.00", "60.00 ± 14.14", "20.00 ± 14.14", "20.00 ± 14.14", "30.00 ± 14.14"],
        ["PFedSIS*", "65.00 ± 7.07", "70.00 ± 14.14", "60.00 ± 0.00", "60.00 ± 0.00", "10.00 ± 0.00"],
        ["Krum", "–", "–", "–", "–", "–"],
    ]
    assert [row[1:3] for row in marks(table)] == [["second"] * 2, ["best"] * 2, ["", ""]]
    assert marks(table)[0][5] == "best"
    assert "over seeds 1, 2;" in table.note and table.note.endswith("; Krum: too few sites")


def test_a_scale_too_short_to_tell_methods_apart_says_so(comparison):
    short = replace(comparison, remark="a check")
    assert "original resolution; a check; Krum" in score_table(short, DICE).note
    assert SCALES["quick"].remark and not SCALES["small"].remark


def test_the_note_says_what_the_networks_began_from(comparison):
    assert "start: random; every site's best model" in score_table(comparison, DICE).note
    for one, digit in zip(comparison.results, "aaabbb", strict=True):
        if one.info:
            one.info["start"] = {"start": "rendered", "sha256": digit * 64}
    note = score_table(comparison, DICE).note
    assert "start: rendered (aaaaaaaa), rendered (bbbbbbbb); every" in note


def test_a_row_that_lacks_a_seed_says_so():
    table = score_table(compared(result("A", 1, (0.5, 0.4)), result("A", 2, None)), DICE)
    assert texts(table) == [["A", "45.00", "50.00", "40.00", "40.00"]]
    assert table.note.endswith("; A: without seed 2 (too few sites)")


def test_the_papers_layout_has_two_metrics_beside_each_other(comparison):
    overlaps, distances, edges = all_tables(comparison, grouped=True)[:3]
    assert overlaps.groups == (("Dice (%) ↑", 3), ("IoU (%) ↑", 3))
    assert overlaps.head == ("Method", *("Average", "a", "b") * 2)
    assert texts(overlaps)[1][4] == "32.50 ± 3.54"
    assert distances.groups == (("ASSD (px) ↓", 3), ("HD95 (px) ↓", 3))
    assert edges.head == ("Method", *("Worst site", "Out of federation") * 4)
    assert texts(edges)[0][5:7] == ["8.00 ± 1.41", "7.00 ± 1.41"] and marks(edges)[0][5] == "second"


@pytest.mark.parametrize(
    ("dice", "metric", "expected"),
    [
        ((0.5, 0.5, 0.4), DICE, ["best", "best", "second"]),
        ((0.0, 0.0, 0.0), DICE, [""] * 3),  # all of them the worst that there is
        ((0.5, 0.5, 0.5), DICE, [""] * 3),
        ((0.5, 0.500001, 0.5), DICE, [""] * 3),  # equal as written
        ((0.0, None, None), DICE, [""] * 3),  # a lone number is better than nothing
        ((1.0, 0.5, 0.0), ASSD, ["best", "second", ""]),  # a distance of 0.00 is the best
        ((1.0, 1.0, 1.0), ASSD, [""] * 3),
    ],
)
def test_the_best_is_marked_where_rows_differ(dice, metric, expected):
    rows = [
        result(label, 1, value if value is None else (value, value)) for label, value in zip("ABC", dice, strict=True)
    ]
    assert [row[1] for row in marks(score_table(compared(*rows), metric))] == expected


def test_an_ablation_has_ticks_and_the_averages_of_four_metrics():
    rows = (result("FedAvg", 1, (0.5, 0.3), ticks=(False, False)), result("GPD", 1, (0.8, 0.6), ticks=(True, False)))
    table = ablation_table(compared(*rows, layout="ablation", tick_names=("GPD", "SGE")))
    assert table.head == ("Method", "GPD", "SGE", "Dice (%)", "IoU (%)", "ASSD (px)", "HD95 (px)")
    assert texts(table)[1] == ["GPD", "✓", "", "70.00", "35.00", "3.00", "6.00"] and table.labels == 3


def test_costs_are_in_thousands_and_megabytes():
    one = result(
        "PFedSIS", 1, (0.5, 0.5), ms_frame=15.2, frames_per_second=23.04, parameters_site=6_791_657,
        parameters_server=34_542, bytes_up=27.2e6, bytes_down=1e6, seconds_round_slowest=106.0,
        seconds_aggregation=0.25,
    )  # fmt: skip
    table = cost_table(compared(one))
    assert texts(table) == [["PFedSIS", "15.20", "23.04", "6791.657", "34.5", "27.2", "1.0", "106.00", "0.250"]]


def test_every_run_is_traced_and_its_seconds_are_said_plainly(comparison):
    table = run_table(comparison)
    assert texts(table)[0] == ["FedAvg", "1", "runs/FedAvg-1/1", "abc", "100", "8"]
    assert texts(table)[4][2] == "too few sites"
    assert "scoring s: afterwards, every site's best model on its test videos; a machine" in table.note
    assert "scoring added" not in table.note


def test_runs_of_several_commits_and_attempts_are_told():
    one, other = result("A", 1, (0.5, 0.4)), result("B", 1, (0.5, 0.4))
    other.info["commit"] = "def"
    other.scores["seconds"]["training"] = None
    table = run_table(compared(one, other))
    assert "NOT all runs are of one commit" in table.note and texts(table)[1][-2:] == ["–", "8"]


def test_the_presets_own_table_comes_first():
    rows = (result("A", 1, (0.5, 0.4)), result("B", 1, (0.3, 0.2)))
    titles = {
        layout: all_tables(compared(*rows, layout=layout, tick_names=()))[0].title
        for layout in ("scores", "costs", "ablation")
    }
    assert titles == {"scores": "A title: Dice (%), higher is better", "costs": "A title", "ablation": "A title"}


def test_markdown_marks_the_best_and_escapes_stars(comparison):
    lines = as_markdown(score_table(comparison, DICE)).splitlines()
    assert lines[2].startswith("| Method | Average |") and lines[3] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert lines[5].startswith("| PFedSIS\\* | **65.00 ± 7.07** |")
    assert lines[4].startswith("| FedAvg | *40.00 ± 0.00* |")


def test_latex_escapes_and_closes_what_it_opens(comparison):
    text = as_latex(score_table(comparison, DICE))
    assert "\\textbf{65.00 $\\pm$ 7.07}" in text and "\\underline{40.00 $\\pm$ 0.00}" in text
    assert "Dice (\\%)" in text and "\\begin{tabular}{lrrrrr}" in text
    for name in ("table*", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 1
    assert all(line.count("&") == 5 for line in text.splitlines() if line.endswith("\\\\") and "&" in line)
    assert latex_text("a_b & 50% ✓") == "a\\_b \\& 50\\% $\\surd$"


def test_latex_has_headings_over_groups_of_columns(comparison):
    lines = as_latex(all_tables(comparison, grouped=True)[0]).splitlines()
    groups = lines.index(r" & \multicolumn{3}{c}{Dice (\%) $\uparrow$} & \multicolumn{3}{c}{IoU (\%) $\uparrow$} \\")
    assert lines[groups + 1] == r"\cmidrule(lr){2-4} \cmidrule(lr){5-7}"
    assert lines[groups + 2] == r"Method & Average & a & b & Average & a & b \\"


def test_the_summary_has_mean_and_deviation_of_every_site(comparison):
    rows = list(csv.DictReader(io.StringIO(summary_csv(comparison))))
    assert len(rows) == 2 * 4 * 5  # rows with results, metrics, sites with average, worst and held-out one
    found = {(row["label"], row["site"], row["metric"]): row for row in rows}
    worst = found["FedAvg", "worst site", "dice"]
    assert float(worst["mean"]) == pytest.approx(0.2) and worst["seeds"] == "2"
    assert float(worst["deviation"]) == pytest.approx(0.02**0.5)


def test_csv_has_one_line_per_run_site_metric_and_class(comparison):
    rows = list(csv.DictReader(io.StringIO(scores_csv(comparison))))
    assert len(rows) == 4 * 3 * 4 * 2  # runs, sites with the held-out one, metrics, classes with the mean
    assert rows[0] == {
        "label": "FedAvg", "method": "fedavg", "seed": "1", "site": "a", "metric": "dice", "class": "shaft",
        "value": "0.5", "run": "runs/FedAvg-1/1",
    }  # fmt: skip


def test_the_page_needs_nothing_else_and_names_what_failed(comparison):
    page = as_page(comparison, all_tables(comparison))
    assert "http" not in page.replace("http://www.w3.org", "") and "<script" not in page
    assert "4 of 6 runs have a result" in page and "Krum, seed 1: too few sites" in page
    assert page.count("<table>") == len(all_tables(comparison)) and "<svg" in page


def test_tables_of_another_comparison_are_moved_and_not_replaced(tmp_path, comparison):
    write_all(comparison, tmp_path)
    before = (tmp_path / "index.html").read_text()
    assert set_aside(tmp_path, comparison.title) is None
    aside = set_aside(tmp_path, "Others: (2)")
    assert aside is not None and aside.parent == tmp_path / "earlier"
    assert {path.name for path in aside.iterdir()} == {*FILES, "comparison.json"}
    assert (aside / "index.html").read_text() == before and not (tmp_path / "index.html").exists()
    assert set_aside(tmp_path, "Others: (2)") is None  # there is nothing to move


def test_a_persons_page_is_not_written_over(tmp_path):
    refuse_foreign(tmp_path / "new")
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ValueError, match=r"holds 'index\.html' and no comparison of surgfl; give another --out"):
        refuse_foreign(tmp_path)
    (tmp_path / "runs").mkdir()  # of an older version, which wrote no record
    refuse_foreign(tmp_path)
