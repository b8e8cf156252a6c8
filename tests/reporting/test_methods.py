"""The documents' table of methods is the code's own."""

from pathlib import Path

import pytest

from shared_components.cli import main
from shared_components.core.method import load_method, method_names
from shared_components.reporting.methods import MARKS, leaves, methods_markdown

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_the_document_has_the_table_that_the_code_gives():
    """If this fails: surgfl methods --write docs/methods.md."""
    block = DOCUMENT.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0].strip()
    assert block == methods_markdown()


def test_every_method_has_a_row_that_names_its_card_and_paper():
    rows = methods_markdown().splitlines()[2:]
    assert len(rows) == len(method_names())
    for name, row in zip(method_names(), rows, strict=True):
        assert f"](../nvflare_jobs/{name}/README.md)" in row and load_method(name).about.paper in row
        assert len(row.split(" | ")) == 7


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
    assert f"{path}: has no lines '{MARKS[0]}' and '{MARKS[1]}'; put them where the table" in capsys.readouterr().err
    assert path.read_text() == "nothing"
