"""Layouts of the papers' tables, CSV files and the page; sites of several tasks have one table per task."""

import csv
import io
import re
from dataclasses import replace

import pytest

from shared_components.experiments.comparison import output, tables
from shared_components.experiments.comparison.plan import SCALES
from shared_components.experiments.comparison.results import Result, contest, facts
from shared_components.experiments.comparison.tables import all_tables, own_tables, score_table
from shared_components.reporting.records import RecordError
from shared_components.reporting.tables import as_markdown
from tests.experiments.comparison.conftest import ABS_REL, ASSD, DICE, HD95, IOU, RMSE, compared, marks, result, texts


def test_scores_are_in_percent_with_deviation_best_and_second(comparison):
    table = score_table(comparison, comparison.groups[0], DICE)
    assert table.head == ("Method", "Average", "a", "b", "Worst site", "Out of federation")
    assert texts(table) == [
        ["FedAvg", "40.00 ± 0.00", "60.00 ± 14.14", "20.00 ± 14.14", "20.00 ± 14.14", "30.00 ± 14.14"],
        ["PFedSIS*", "65.00 ± 7.07", "70.00 ± 14.14", "60.00 ± 0.00", "60.00 ± 0.00", "10.00 ± 0.00"],
        ["Krum", "–", "–", "–", "–", "–"],
    ]
    assert [row[1:3] for row in marks(table)] == [["second"] * 2, ["best"] * 2, ["", ""]]
    assert marks(table)[0][5] == "best"
    assert "over seeds 1, 2. " in table.note and table.note.endswith(". Krum: too few sites")
    head, rule, first, second, *_ = as_markdown(table).splitlines()[2:]
    assert head.startswith("| Method | Average |") and rule == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert first.startswith("| FedAvg | *40.00 ± 0.00* |") and second.startswith("| PFedSIS\\* | **65.00 ± 7.07** |")


def test_the_note_contains_start_missing_seeds_and_that_a_scale_is_too_short(comparison):
    short = replace(comparison, remark="a check")
    assert "original resolution. a check. Krum" in score_table(short, short.groups[0], DICE).note
    assert SCALES["quick"].remark and not SCALES["small"].remark
    assert "start: random. Models: each site's best" in score_table(comparison, comparison.groups[0], DICE).note
    for one, digit in zip(comparison.results, "aaabbb", strict=True):
        if one.info:
            one.info["start"] = {"start": "rendered", "sha256": digit * 64}
    note = score_table(comparison, comparison.groups[0], DICE).note
    assert "start: rendered (aaaaaaaa), rendered (bbbbbbbb). Models" in note
    lacking = compared(result("A", 1, (0.5, 0.4)), result("A", 2, None))
    table = score_table(lacking, lacking.groups[0], DICE)
    assert texts(table) == [["A", "45.00", "50.00", "40.00", "40.00"]]
    assert table.note.endswith(". A: without seed 2 (too few sites)")


def test_the_papers_layout_has_two_metrics_beside_each_other(comparison):
    overlaps, distances, edges = all_tables(comparison)[:3]
    assert overlaps.groups == (("Dice (%) ↑", 3), ("IoU (%) ↑", 3))
    assert overlaps.head == ("Method", *("Average", "a", "b") * 2)
    assert texts(overlaps)[1][4] == "32.50 ± 3.54"
    assert distances.groups == (("ASSD (px) ↓", 3), ("HD95 (px) ↓", 3))
    assert edges.head == ("Method", *("Worst site", "Out of federation") * 4)
    assert texts(edges)[0][5:7] == ["8.00 ± 1.41", "7.00 ± 1.41"] and marks(edges)[0][5] == "second"


@pytest.mark.parametrize("dice, metric, expected", [
    ((0.5, 0.5, 0.4), DICE, ["best", "best", "second"]),
    ((1.0, 0.5, 0.0), ASSD, ["best", "second", ""]),  # a distance of 0.00 is the best
    ((0.0, 0.3, None), DICE, ["", "best", ""]),  # no score of 0 is marked
    ((0.5, 0.5, 0.5), DICE, [""] * 3), ((0.0, 0.0, 0.0), DICE, [""] * 3), ((1.0, 1.0, 1.0), ASSD, [""] * 3),
    ((0.5, 0.500001, 0.5), DICE, [""] * 3),  # equal as written
    ((0.0, None, None), DICE, [""] * 3),  # a lone number is better than nothing
])  # fmt: skip
def test_the_best_is_marked_where_rows_differ(dice, metric, expected):
    outcome = compared(
        *(result(label, 1, None if value is None else (value,) * 2) for label, value in zip("ABC", dice, strict=True))
    )
    assert [row[1] for row in marks(score_table(outcome, outcome.groups[0], metric))] == expected


def test_an_ablation_has_ticks_and_the_averages_of_four_metrics():
    rows = (result("FedAvg", 1, (0.5, 0.3), ticks=(False, False)), result("GPD", 1, (0.8, 0.6), ticks=(True, False)))
    (table,) = own_tables(compared(*rows, layout="ablation", tick_names=("GPD", "SGE")))
    assert table.head == ("Method", "GPD", "SGE", "Dice (%)", "IoU (%)", "ASSD (px)", "HD95 (px)")
    assert texts(table)[1] == ["GPD", "✓", "", "70.00", "35.00", "3.00", "6.00"] and table.labels == 3
    (table,) = own_tables(compared(*rows, tick_names=("TS", "SERQ")))
    assert table.head[:5] == ("Method", "TS", "SERQ", "Average", "a") and table.labels == 3
    assert [list(row[:3]) for row in table.rows] == [["FedAvg", "", ""], ["GPD", "✓", ""]]


def test_costs_are_in_thousands_and_megabytes():
    one = result(
        "PFedSIS", 1, (0.5, 0.5), ms_frame=15.2, frames_per_second=23.04, parameters_site=6_791_657,
        parameters_trained=11_175_000, parameters_server=34_542, bytes_up=27.2e6, bytes_down=1e6,
        seconds_round_slowest=106.0, seconds_aggregation=0.25,
    )  # fmt: skip
    assert texts(tables.cost_table(compared(one))) == [
        ["PFedSIS", "15.20", "23.04", "6791.657", "34.5", "44.70", "0.14", "27.2", "1.0", "106.00", "0.250"]
    ]


def test_every_run_has_its_folder_commit_and_seconds_and_several_commits_are_announced(comparison):
    table = tables.run_table(comparison)
    assert texts(table)[0] == ["FedAvg", "1", "runs/FedAvg-1/1", "abc", "100", "8"]
    assert texts(table)[4][2] == "too few sites"
    assert "Scoring s: each site's best model on its test videos. a machine" in table.note
    assert "NOT all runs" not in table.note
    one, other = result("A", 1, (0.5, 0.4)), result("B", 1, (0.5, 0.4))
    other.info["commit"] = "def"
    other.scores["seconds"]["training"] = None
    table = tables.run_table(compared(one, other))
    assert "NOT all runs have the same commit" in table.note and texts(table)[1][-2:] == ["–", "8"]


def test_the_presets_own_table_comes_first():
    rows = (result("A", 1, (0.5, 0.4)), result("B", 1, (0.3, 0.2)))
    titles = [all_tables(compared(*rows, layout=name))[0].title for name in ("scores", "costs", "ablation")]
    assert titles == ["A title"] * 3


def test_csv_files_have_means_by_site_and_one_line_per_run_site_metric_and_class(comparison):
    rows = list(csv.DictReader(io.StringIO(output.summary_csv(comparison))))
    assert len(rows) == 2 * 4 * 5  # rows with results, metrics, sites with average, worst and held-out one
    worst = {(row["label"], row["site"], row["metric"]): row for row in rows}["FedAvg", "worst site", "dice"]
    assert float(worst["mean"]) == pytest.approx(0.2) and worst["seeds"] == "2"
    assert float(worst["deviation"]) == pytest.approx(0.02**0.5)
    rows = list(csv.DictReader(io.StringIO(output.scores_csv(comparison))))
    assert len(rows) == 4 * 3 * 4 * 2  # runs, sites with the held-out one, metrics, classes with the mean
    assert rows[0] == {
        "label": "FedAvg", "method": "fedavg", "seed": "1", "site": "a", "metric": "dice", "class": "shaft",
        "value": "0.5", "run": "runs/FedAvg-1/1",
    }  # fmt: skip


def test_the_page_needs_nothing_else_and_names_what_failed(comparison):
    page = output.as_page(comparison)
    assert "http" not in page.replace("http://www.w3.org", "") and "<script" not in page
    assert "4 of 6 runs have a result" in page and "Krum, seed 1: too few sites" in page
    assert page.count("<table>") == len(all_tables(comparison)) and "<svg" in page


def test_tables_of_another_comparison_are_moved_and_foreign_files_stay(tmp_path, comparison):
    output.write_all(comparison, tmp_path)
    before = (tmp_path / "index.html").read_text()
    assert output.set_aside(tmp_path, comparison.title) is None
    aside = output.set_aside(tmp_path, "Others: (2)")
    assert aside is not None and aside.parent == tmp_path / "earlier"
    assert {path.name for path in aside.iterdir()} == {*output.WRITERS, "comparison.json"}
    assert (aside / "index.html").read_text() == before and not (tmp_path / "index.html").exists()
    assert output.set_aside(tmp_path, "Others: (2)") is None  # there is nothing to move
    output.refuse_foreign(tmp_path / "new")
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ValueError, match=r"contains 'index\.html' but no comparison; choose another --out"):
        output.refuse_foreign(tmp_path)
    (tmp_path / "runs").mkdir()  # an older version wrote no record
    output.refuse_foreign(tmp_path)


SEGMENTATION, DEPTH = "Segmentation: shaft (a, b)", "Depth (c)"


def test_every_task_has_its_own_table_without_empty_metrics_and_the_lower_error_is_best(two_tasks):
    assert [group.title for group in two_tasks.groups] == [SEGMENTATION, DEPTH]
    assert [m.name for m in two_tasks.groups[0].metrics] == ["dice", "iou", "assd", "hd95"]
    assert two_tasks.groups[1].metrics == (RMSE, ABS_REL)
    segmentation, depth = own_tables(two_tasks)
    assert segmentation.title == f"A title; {SEGMENTATION}: Dice (%), higher is better"
    assert segmentation.head == ("Method", "Average", "a", "b", "Worst site")
    assert depth.title == f"A title; {DEPTH}: RMSE (mm), lower is better"
    assert depth.head == ("Method", "Average", "c", "Worst site", "Out of federation")
    assert texts(depth) == [["FedAvg", "4.00", "4.00", "4.00", "8.00"], ["PFedSIS", *["6.00"] * 3, "12.00"]]
    assert [row[1:] for row in marks(depth)] == [["best"] * 4, ["second"] * 4]
    assert [row[1] for row in marks(segmentation)] == ["second", "best"]


def test_no_number_stands_in_a_table_of_another_task(two_tasks):
    for table in all_tables(two_tasks):
        names = " ".join((*table.head, table.title, *(name for name, _ in table.groups)))
        assert not ("Dice" in names and "RMSE" in names)
        assert not ("RMSE" in names and {"a", "b"} & set(table.head))
    overlaps, distances = ["Dice (%) ↑", "IoU (%) ↑"], ["ASSD (px) ↓", "HD95 (px) ↓"]
    depth = ["RMSE (mm) ↓", "absolute relative error ↓"]
    outcome = [[name for name, _ in table.groups] for table in all_tables(two_tasks) if table.groups]
    assert outcome == [overlaps, distances, overlaps + distances, depth, depth]


def test_the_contest_of_a_task_is_won_by_its_own_direction(two_tasks):
    segmentation, depth = two_tasks.groups
    assert contest(two_tasks, segmentation, DICE).best == contest(two_tasks, segmentation, HD95).best == "PFedSIS"
    outcome = contest(two_tasks, depth, RMSE)
    assert (outcome.best, outcome.second, outcome.difference, outcome.seeds) == ("FedAvg", "PFedSIS", -2.0, 1)
    assert f"Do the best two differ? {DEPTH}" in {table.title for table in all_tables(two_tasks)}


def test_digits_and_factor_are_the_metrics_own(two_tasks):
    depth = score_table(two_tasks, two_tasks.groups[1], ABS_REL)
    assert texts(depth)[0] == ["FedAvg", "0.040", "0.040", "0.040", "0.500"]
    iou = score_table(two_tasks, two_tasks.groups[0], IOU)
    assert texts(iou)[0][1] == "20.00" and iou.title.endswith("IoU (%), higher is better")


def test_an_ablation_has_a_table_per_task(two_tasks):
    first, second = own_tables(replace(two_tasks, layout="ablation"))
    assert first.head == ("Method", "Dice (%)", "IoU (%)", "ASSD (px)", "HD95 (px)")
    assert second.head == ("Method", "RMSE (mm)", "absolute relative error")
    assert second == tables.ablation_table(two_tasks, two_tasks.groups[1]) and second.title == f"A title; {DEPTH}"


def test_files_keep_the_tasks_apart(two_tasks):
    rows = list(csv.DictReader(io.StringIO(output.summary_csv(two_tasks))))
    averages = {(r["label"], r["task"], r["metric"]): float(r["mean"]) for r in rows if r["site"] == "average"}
    assert averages["FedAvg", "Depth", "rmse"] == 4.0
    assert averages["FedAvg", "Segmentation: shaft", "dice"] == pytest.approx(0.4)
    assert len(averages) == 2 * (4 + 2)
    scored = list(csv.DictReader(io.StringIO(output.scores_csv(two_tasks))))
    for site in ("c", "out of federation"):
        assert {r["metric"] for r in scored if r["site"] == site} == {"rmse", "abs_rel"}
    page = output.as_page(two_tasks)
    charts = re.findall('class="chart[^"]*" role="img" aria-label="([^"]*) on the test videos', page)
    expected = [f"{SEGMENTATION}: Dice", f"{DEPTH}: RMSE mm"]
    assert charts[::2] == charts[1::2] == expected  # for wide windows, and for narrow ones


def test_without_results_the_rows_are_named_with_the_reason_and_runs_of_an_older_version_are_refused():
    nothing = compared(result("A", 1, None), result("B", 1, None))
    assert nothing.groups == ()
    table = own_tables(nothing)[0]
    assert texts(table) == [["A"], ["B"]] and "A: too few sites" in table.note
    assert all(map(as_markdown, all_tables(nothing)))
    one = result("A", 1, (0.5, 0.4))
    old = Result(one.run, one.folder, one.scores, {"commit": "abc"})
    with pytest.raises(RecordError, match=r"runs/A-1/1/run\.json: is from an older version of surgfl"):
        all_tables(compared(old))


def test_the_held_out_layout_shows_all_metrics_of_the_held_out_site_with_merged_classes():
    rows = result("FedAvg", 1, (0.5, 0.3), held_out=0.2), result("FedST", 1, (0.7, 0.1), held_out=0.4)
    comparison = compared(*rows, layout="held-out")
    (table,) = own_tables(comparison)
    assert table.head == ("Method", "Dice (%)", "IoU (%)", "ASSD (px)", "HD95 (px)")
    assert texts(table) == [["FedAvg", "20.00", "10.00", "8.00", "16.00"], ["FedST", "40.00", "20.00", "6.00", "12.00"]]
    assert table.title.endswith(": out of federation") and "merged" not in table.note
    assert all_tables(comparison)[0] == table
    one = result("FedST", 1, (0.7, 0.1), held_out=0.4)
    one.scores["held_out"] = {"merged": ["background", "shaft"], "dice": {"instrument": 0.9, "mean": 0.9}}
    comparison = compared(one, layout="held-out")
    table = tables.held_out_table(comparison, comparison.groups[0])
    assert list(table.rows[0])[:2] == ["FedST", "90.00"] and "merged" in table.note
    one.scores["held_out"]["merged"] = ["background", "depth"]
    assert tables.held_out_table(comparison, comparison.groups[0]).rows[0][1] == "–"


def test_facts_say_what_each_row_has_where_they_differ():
    one, other = result("A", 1, (0.5, 0.3)), result("B", 1, (0.5, 0.3))
    other = replace(other, run=replace(other.run, rounds=9))
    assert facts(compared(one, other))["rounds"] == "2 / 9" and facts(compared(one))["rounds"] == "2"
