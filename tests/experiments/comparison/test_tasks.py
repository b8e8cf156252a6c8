"""Sites of several tasks: one table per task, each by its own metrics and direction."""

import csv
import io
import re
from dataclasses import replace

import pytest

from shared_components.experiments.comparison.output import as_page, scores_csv, summary_csv
from shared_components.experiments.comparison.results import Result, contest
from shared_components.experiments.comparison.tables import ablation_table, all_tables, own_tables, score_table
from shared_components.reporting.records import RecordError
from shared_components.reporting.tables import as_latex, as_markdown
from tests.experiments.comparison.conftest import ABS_REL, DICE, HD95, IOU, RMSE, compared, marks, result, texts

SEGMENTATION, DEPTH = "Segmentation: shaft (a, b)", "Depth (c)"


def test_sites_are_grouped_and_metrics_that_no_run_holds_are_left_out(two_tasks):
    assert [group.title for group in two_tasks.groups] == [SEGMENTATION, DEPTH]
    assert [m.name for m in two_tasks.groups[0].metrics] == ["dice", "iou", "assd", "hd95"]
    assert two_tasks.groups[1].metrics == (RMSE, ABS_REL)


def test_every_task_has_a_table_of_its_own_and_the_lower_error_is_best(two_tasks):
    segmentation, depth = own_tables(two_tasks)
    assert segmentation.title == f"A title; {SEGMENTATION}: Dice (%), higher is better"
    assert segmentation.head == ("Method", "Average", "a", "b", "Worst site")
    assert depth.title == f"A title; {DEPTH}: RMSE (mm), lower is better"
    assert depth.head == ("Method", "Average", "c", "Worst site", "Out of federation")
    assert texts(depth) == [["FedAvg", "4.00", "4.00", "4.00", "8.00"], ["PFedSIS", *["6.00"] * 3, "12.00"]]
    assert [row[1:] for row in marks(depth)] == [["best"] * 4, ["second"] * 4]
    assert [row[1] for row in marks(segmentation)] == ["second", "best"]


def test_no_number_stands_in_a_table_of_another_task(two_tasks):
    for grouped in (False, True):
        for table in all_tables(two_tasks, grouped=grouped):
            names = " ".join((*table.head, table.title, *(name for name, _ in table.groups)))
            assert not ("Dice" in names and "RMSE" in names)
            assert not ("RMSE" in names and {"a", "b"} & set(table.head))


def test_metrics_stand_two_by_two_and_edges_by_four(two_tasks):
    tables = all_tables(two_tasks, grouped=True)
    assert [[name for name, _ in table.groups] for table in tables if table.groups] == [
        ["Dice (%) ↑", "IoU (%) ↑"],
        ["ASSD (px) ↓", "HD95 (px) ↓"],
        ["Dice (%) ↑", "IoU (%) ↑", "ASSD (px) ↓", "HD95 (px) ↓"],
        ["RMSE (mm) ↓", "absolute relative error ↓"],
        ["RMSE (mm) ↓", "absolute relative error ↓"],
    ]


def test_the_contest_of_a_task_is_won_by_its_own_direction(two_tasks):
    segmentation, depth = two_tasks.groups
    assert contest(two_tasks, segmentation, DICE).best == contest(two_tasks, segmentation, HD95).best == "PFedSIS"
    found = contest(two_tasks, depth, RMSE)
    assert (found.best, found.second, found.difference, found.seeds) == ("FedAvg", "PFedSIS", -2.0, 1)
    titles = [table.title for table in all_tables(two_tasks)]
    assert f"Do the best two differ? {DEPTH}" in titles


def test_digits_and_factor_are_the_metrics_own(two_tasks):
    table = score_table(two_tasks, two_tasks.groups[1], ABS_REL)
    assert texts(table)[0] == ["FedAvg", "0.040", "0.040", "0.040", "0.500"]
    iou = score_table(two_tasks, two_tasks.groups[0], IOU)
    assert texts(iou)[0][1] == "20.00" and iou.title.endswith("IoU (%), higher is better")


def test_an_ablation_has_a_table_per_task(two_tasks):
    first, second = own_tables(replace(two_tasks, layout="ablation"))
    assert first.head == ("Method", "Dice (%)", "IoU (%)", "ASSD (px)", "HD95 (px)")
    assert second.head == ("Method", "RMSE (mm)", "absolute relative error")
    assert ablation_table(two_tasks, two_tasks.groups[1]).title == f"A title; {DEPTH}"


def test_files_keep_the_tasks_apart(two_tasks):
    rows = list(csv.DictReader(io.StringIO(summary_csv(two_tasks))))
    averages = {(r["label"], r["task"], r["metric"]): float(r["mean"]) for r in rows if r["site"] == "average"}
    assert averages["FedAvg", "Depth", "rmse"] == 4.0
    assert averages["FedAvg", "Segmentation: shaft", "dice"] == pytest.approx(0.4)
    assert len(averages) == 2 * (4 + 2)
    scored = list(csv.DictReader(io.StringIO(scores_csv(two_tasks))))
    assert {r["metric"] for r in scored if r["site"] == "c"} == {"rmse", "abs_rel"}
    assert {r["metric"] for r in scored if r["site"] == "out of federation"} == {"rmse", "abs_rel"}
    page = as_page(two_tasks, all_tables(two_tasks, grouped=True))
    charts = re.findall('class="chart[^"]*" role="img" aria-label="([^"]*) on the test videos', page)
    assert (
        charts[::2]
        == charts[1::2]
        == [  # for wide windows, and for narrow ones
            f"{SEGMENTATION}: Dice",
            f"{DEPTH}: RMSE mm",
        ]
    )
    for table in all_tables(two_tasks):
        assert as_markdown(table) and as_latex(table).count("tabular") == 2


def test_where_nothing_is_done_the_rows_are_named_with_the_reason():
    nothing = compared(result("A", 1, None), result("B", 1, None))
    assert nothing.groups == ()
    table = own_tables(nothing)[0]
    assert texts(table) == [["A"], ["B"]] and "A: too few sites" in table.note
    assert all(as_markdown(table) and as_latex(table) for table in all_tables(nothing, grouped=True))


def test_runs_of_an_older_version_are_refused_in_one_sentence():
    one = result("A", 1, (0.5, 0.4))
    old = Result(one.run, one.folder, one.scores, {"commit": "abc"})
    with pytest.raises(RecordError, match=r"runs/A-1/1/run\.json: names no tasks, an older version"):
        all_tables(compared(old))
