"""Tables: aligned, equal to the records, dashes for what does not exist; that of methods in the documents is ours."""

import json
import math
import sys
from pathlib import Path

import pytest

from shared_components.cli import main
from shared_components.core.card import Metric
from shared_components.core.method import load_method, method_names
from shared_components.reporting import score_tables
from shared_components.reporting.methods import MARKS, leaves, methods_markdown
from shared_components.reporting.records import Group, load_run
from shared_components.reporting.score_tables import demo_text, progress_table, scores_table
from shared_components.reporting.tables import Table, as_markdown, as_text
from tests.reporting.conftest import METRICS, SEGMENTATION

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "methods.md"
SHAFT = Group(SEGMENTATION, METRICS["segmentation"], ("a", "b"), ("shaft",))

VALUES = {"dice": 0.5, "iou": 0.25, "assd": 2.0, "hd95": 4.0, "hd95_monai": 5.0}
ONE = {name: dict.fromkeys(("shaft", "mean"), value) for name, value in VALUES.items()}
ONE |= {"empty": {"shaft": {"both": 1, "truth": 2, "prediction": 3}}, "frames": 8}
TWO = {
    "dice": {"shaft": 0.9, "mean": 0.9}, "iou": {"shaft": math.nan, "mean": None},
    "assd": {"shaft": 1.0, "mean": 1.0}, "hd95": {"shaft": 2.0, "mean": math.inf},
}  # fmt: skip


def test_a_table_says_the_spread_over_videos_where_a_record_has_one():
    metric = Metric("f1", "F1", True, "%", 100.0, 2)
    record = {"f1": {"mean": 0.5}, "std": {"f1": 0.125}, "videos": {"count": 4}}
    said = score_tables.spread_remark({"a": record, "b": {"f1": {"mean": 0.4}}}, metric)
    assert said == "F1 over videos, mean ± population standard deviation: a 0.500 ± 0.125 (4 videos)"
    assert score_tables.spread_remark({"b": {"f1": {"mean": 0.4}}}, metric) == ""


def test_text_columns_are_aligned_wide_characters_take_two_and_markdown_escapes_the_column_mark():
    table = Table("title", ("site", "Dice"), (("a", "0.1"), ("a long site", "0.25")))
    lines = ["site         Dice", "-----------  ----", "a             0.1", "a long site  0.25"]
    assert as_text(table).splitlines()[2:] == lines
    assert as_text(Table("t", ("s", "x"), (("病院", "1"), ("ab", "2")))).splitlines()[4:] == ["病院  1", "ab    2"]
    lines = as_markdown(Table("t", ("site", "Dice"), (("a|b", "1"),))).splitlines()
    assert lines[2:] == ["| site | Dice |", "| --- | ---: |", "| a\\|b | 1 |"]


def test_scores_are_those_of_the_records_with_worst_site_by_column_and_dashes_for_no_numbers():
    rows = {row[:2]: row[2:] for row in scores_table({"a": ONE, "b": TWO}, SHAFT, title="t").rows}
    assert rows["a", "shaft"] == ("0.500", "0.250", "2.00", "4.00", "5.00", "1 / 2 / 3 of 8")
    assert rows["b", "shaft"] == ("0.900", "–", "1.00", "2.00", "–", "")
    assert rows["mean over sites", "shaft"] == ("0.700", "0.250", "1.50", "3.00", "5.00", "")
    assert rows["worst site", "shaft"] == ("0.500", "0.250", "2.00", "4.00", "5.00", "")
    assert rows["b", "mean"] == ("0.900", "–", "1.00", "–", "–", "")


def test_progress_starts_at_the_first_round_and_ends_at_the_final_model(make_run):
    run = load_run(make_run())
    rows = {row[0]: row[1:] for row in progress_table(run, run.groups[0]).rows}
    last = run.finals["site-1"]["dice"]
    values = run.rows["site-1"][0]["metrics"]["dice"]["mean"], *map(last.get, (*run.groups[0].outputs, "mean"))
    assert rows["site-1"][:-1] == tuple(f"{v:.3f}" for v in values)
    assert rows["site-3"][3] == "–"
    assert rows["worst site"][4] == min(rows[site][4] for site in run.sites)
    del run.rows["site-2"][0]  # a site that joined late
    assert [row[1] == "–" for row in progress_table(run, run.groups[0]).rows[:3]] == [False, True, False]
    alone = load_run(make_run("alone", sites=("only",)))
    assert [row[0] for row in progress_table(alone, alone.groups[0]).rows] == ["only"]


def test_a_run_without_a_finished_round_has_a_table_and_the_test_split_one_of_its_own(make_run):
    assert "site-1" in demo_text(make_run("begun", done=0))
    validation, test = demo_text(make_run(), evaluations={"site-1": ONE}).split("Scores on the test split")
    assert "Dice on the validation split" in validation and "0.500" in test


def test_models_stand_beside_each_other_by_site_with_their_mean(make_run):
    before = {"site-1": {"dice": {"mean": 0.25}}, "site-2": {"dice": {"mean": 0.5}}}
    after = {"site-1": {"dice": {"mean": 0.75}}, "site-2": {"dice": {"mean": None}}}
    folder, compared = make_run(sites=("site-1", "site-2")), {"alone": before, "together": after}
    run = load_run(folder, evaluations=after, compared=compared)
    table = score_tables.comparison_table(run, run.groups[0])
    assert table.head == ("site", "alone", "together")
    sites = ("site-1", "0.250", "0.750"), ("site-2", "0.500", "–")
    assert table.rows == (*sites, ("mean over sites", "0.375", "0.750"), ("worst site", "0.250", "0.750"))
    assert "Dice, alone | together: on the test split" in demo_text(run)


def test_the_command_names_the_folders_that_it_puts_side_by_side(make_run, tmp_path, capsys):
    for name, value in (("alone", 0.25), ("together", 0.75)):
        (tmp_path / name / "site-1").mkdir(parents=True)
        (tmp_path / name / "site-1" / "metrics.json").write_text(json.dumps({"dice": {"mean": value}}))
    folders = [f"--evaluations=trained {name}={tmp_path / name}" for name in ("alone", "together")]
    page = tmp_path / "page.html"
    run = str(make_run(sites=("site-1",)))
    assert main(["report", run, *folders, "--out", str(page)]) == 0
    assert "trained alone  trained together" in capsys.readouterr().out
    assert "trained together" in page.read_text(encoding="utf-8")
    assert main(["report", run, folders[0], folders[0], "--out", str(page)]) == 2
    assert "'trained alone' is given twice" in capsys.readouterr().err
    assert main(["report", run, folders[0], f"--evaluations={tmp_path}", "--out", str(page)]) == 2
    assert "each of several folders needs a name" in capsys.readouterr().err
    assert main(["report", str(make_run("other", sites=("munich", "leeds"))), *folders, "--out", str(page)]) == 2
    said = "the evaluations 'trained alone' are of site-1, but the run's sites are munich, leeds; give evaluations of"
    assert said in capsys.readouterr().err


def documented():
    return DOCUMENT.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0].strip()


def test_the_document_has_the_generated_table_with_every_methods_card_and_paper():
    """If this fails: surgfl methods --write docs/reference/methods.md."""
    assert documented() == methods_markdown()
    for name, row in zip(method_names(), methods_markdown().splitlines()[2:], strict=True):
        assert f"](../../nvflare_jobs/{name}/README.md)" in row and load_method(name).about.paper in row
        assert len(row.split(" | ")) == 7


def test_without_the_package_of_a_methods_network_the_others_are_listed_whole(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    pairs = zip(methods_markdown().splitlines(), documented().splitlines(), strict=True)
    ((without, row),) = [pair for pair in pairs if len(set(pair)) > 1]
    assert "/surgfed/" in row and " | not known: " in without and "pip install 'surgfl[sam2]' | " in without


def test_what_leaves_is_counted_in_bytes_of_four_classes():
    """6,791,270 parameters at three classes, 258 more with a fourth in both heads; four bytes each."""
    assert leaves(load_method("fedavg")) == "27.2 MB GLOBAL"
    whole = 4 * (6_791_270 + 2 * (128 + 1) + 128 * 3 + 3)
    mixed = leaves(load_method("pfedsis")).split(", ")
    assert sum(float(part.split()[0]) for part in mixed[:2]) == pytest.approx(whole / 1e6, abs=0.11)
    assert mixed[2:] == ["`sensitivity`", "once its style"]


def test_a_document_without_marks_is_refused_and_left_alone(tmp_path, capsys):
    path = tmp_path / "a.md"
    path.write_text("nothing")
    assert main(["methods", "--write", str(path)]) == 2
    assert f"{path}: has no lines '{MARKS[0]}' and '{MARKS[1]}'; put them around the table" in capsys.readouterr().err
    assert path.read_text() == "nothing"
