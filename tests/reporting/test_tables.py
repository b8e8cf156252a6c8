"""Tables: aligned, with numbers equal to the records and dashes for what does not exist."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from shared_components.cli import main
from shared_components.reporting.records import Group, load_run
from shared_components.reporting.score_tables import beside_table, demo_text, progress_table, scores_table
from shared_components.reporting.tables import Table, as_markdown, as_text
from tests.reporting.conftest import METRICS, SEGMENTATION

SHAFT = Group(SEGMENTATION, METRICS["segmentation"], ("a", "b"), ("shaft",))

VALUES = {"dice": 0.5, "iou": 0.25, "assd": 2.0, "hd95": 4.0, "hd95_monai": 5.0}
ONE = {
    **{name: {"shaft": value, "mean": value} for name, value in VALUES.items()},
    "empty": {"shaft": {"both": 1, "truth": 2, "prediction": 3}},
    "frames": 8,
}
TWO = {
    "dice": {"shaft": 0.9, "mean": 0.9},
    "iou": {"shaft": math.nan, "mean": None},
    "assd": {"shaft": 1.0, "mean": 1.0},
    "hd95": {"shaft": 2.0, "mean": math.inf},
}


def test_text_columns_are_aligned() -> None:
    table = Table("title", ("site", "Dice"), (("a", "0.1"), ("a long site", "0.25")))
    assert as_text(table).splitlines()[2:] == [
        "site         Dice",
        "-----------  ----",
        "a             0.1",
        "a long site  0.25",
    ]


def test_wide_characters_take_two_columns() -> None:
    lines = as_text(Table("t", ("s", "x"), (("病院", "1"), ("ab", "2")))).splitlines()
    assert lines[4:] == ["病院  1", "ab    2"]


def test_markdown_escapes_the_column_mark() -> None:
    lines = as_markdown(Table("t", ("site", "Dice"), (("a|b", "1"),))).splitlines()
    assert lines[2:] == ["| site | Dice |", "| --- | ---: |", "| a\\|b | 1 |"]


def test_scores_are_those_of_the_records_with_worst_site_by_column() -> None:
    rows = {row[:2]: row[2:] for row in scores_table({"a": ONE, "b": TWO}, SHAFT, title="t").rows}
    assert rows["a", "shaft"] == ("0.500", "0.250", "2.00", "4.00", "5.00", "1 / 2 / 3 of 8")
    assert rows["b", "shaft"] == ("0.900", "–", "1.00", "2.00", "–", "")
    assert rows["mean over sites", "shaft"] == ("0.700", "0.250", "1.50", "3.00", "5.00", "")
    assert rows["worst site", "shaft"] == ("0.500", "0.250", "2.00", "4.00", "5.00", "")


def test_nan_null_and_infinity_are_dashes_and_do_not_enter_the_mean() -> None:
    rows = {row[:2]: row[2:] for row in scores_table({"b": TWO}, SHAFT, title="t").rows}
    assert rows["b", "mean"] == ("0.900", "–", "1.00", "–", "–", "")


def test_progress_starts_at_the_first_round_and_ends_at_the_final_model(make_run: Callable[..., Path]) -> None:
    run = load_run(make_run())
    rows = {row[0]: row[1:] for row in progress_table(run, run.groups[0]).rows}
    first = run.rows["site-1"][0]["metrics"]["dice"]["mean"]
    last = run.finals["site-1"]["dice"]
    assert rows["site-1"][:-1] == tuple(
        f"{v:.3f}" for v in (first, *(last[c] for c in run.groups[0].outputs), last["mean"])
    )
    assert rows["site-3"][3] == "–"
    assert rows["worst site"][4] == min(rows[site][4] for site in run.sites)


def test_one_site_has_no_rows_over_sites(make_run: Callable[..., Path]) -> None:
    run = load_run(make_run(sites=("only",)))
    table = progress_table(run, run.groups[0])
    assert [row[0] for row in table.rows] == ["only"]


def test_a_site_that_joined_late_has_no_first_value(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    file = folder / "server" / "rounds.jsonl"
    kept = [line for line in file.read_text().splitlines(True) if '"round": 0, "site": "site-2"' not in line]
    file.write_text("".join(kept))
    run = load_run(folder)
    rows = {row[0]: row[1:] for row in progress_table(run, run.groups[0]).rows}
    assert rows["site-2"][0] == "–"
    assert rows["site-1"][0] != "–"


def test_a_run_without_a_finished_round_still_gives_a_table(make_run: Callable[..., Path]) -> None:
    assert "site-1" in demo_text(make_run(done=0))


def test_the_test_split_is_a_table_of_its_own(make_run: Callable[..., Path]) -> None:
    text = demo_text(make_run(), evaluations={"site-1": ONE})
    validation, test = text.split("Scores on the test split")
    assert "Dice on the validation split" in validation
    assert "0.500" in test


def test_models_stand_beside_each_other_by_site_with_their_mean(make_run: Callable[..., Path]) -> None:
    before = {"site-1": {"dice": {"mean": 0.25}}, "site-2": {"dice": {"mean": 0.5}}}
    after = {"site-1": {"dice": {"mean": 0.75}}, "site-2": {"dice": {"mean": None}}}
    run = load_run(make_run(sites=("site-1", "site-2")), evaluations=after, beside={"alone": before, "together": after})
    table = beside_table(run, run.groups[0])
    assert table.head == ("site", "alone", "together")
    assert table.rows == (
        ("site-1", "0.250", "0.750"),
        ("site-2", "0.500", "–"),
        ("mean over sites", "0.375", "0.750"),
        ("worst site", "0.250", "0.750"),
    )
    assert "Dice, alone | together: on the test split" in demo_text(run)


def test_the_command_names_the_folders_that_it_puts_side_by_side(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert "each needs a name" in capsys.readouterr().err
