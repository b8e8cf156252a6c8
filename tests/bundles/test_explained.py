"""What a person can put right ends a bundle with one sentence, and a fault of the program with its traceback."""

import logging
import sys
from pathlib import Path

import pytest

from shared_components.bundle_engines import prepare
from shared_components.common.atomic import not_written
from shared_components.data.files import DataError


@pytest.fixture(autouse=True)
def own_records():
    """Leave the records of other tests' logs as they were."""
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


def told(error, monkeypatch, capsys):
    """Return what an uncaught error prints, wrapped as MONAI wraps it."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    prepare.explain_errors()
    wrapped = RuntimeError("Failed to evaluate")
    wrapped.__cause__ = error
    sys.excepthook(RuntimeError, wrapped, None)
    return capsys.readouterr().err


def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory") as caught:
        (tmp_path / "file" / "out").mkdir(parents=True)
    said = told(caught.value, monkeypatch, capsys)
    assert said.startswith(f"error: {tmp_path / 'file' / 'out'}: Not a directory; correct the path")
    assert said.count("\n") == 1


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (DataError(Path("a.png"), "is damaged", "copy it again"), "error: a.png: is damaged; copy it again\n"),
        (DataError(Path("a\x1b[2J.png"), "is damaged", "copy it again"), "error: a.png: is damaged; copy it again\n"),
        (
            not_written(Path("b.safetensors"), FULL),
            "error: b.safetensors: could not be written (No space left on device)",
        ),
        (FULL, "error: a file in output_dir: No space left on device; "),
    ],
)
def test_a_damaged_file_and_a_full_disk_are_one_sentence_without_escapes(error, sentence, monkeypatch, capsys):
    said = told(error, monkeypatch, capsys)
    assert said.startswith(sentence) and said.count("\n") == 1


@pytest.mark.parametrize(
    "error, lines", [(DataError(Path("a.png"), "is damaged", "copy it again"), 1), (KeyError("x"), 5)]
)
def test_what_engines_log_of_an_error_is_one_line_where_it_is_for_a_person(error, lines, monkeypatch, caplog):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    prepare.explain_errors()
    try:
        raise error
    except Exception as caught:
        logging.getLogger("ignite").exception("Exception: %s", caught)
    assert len(caplog.text.splitlines()) == lines


def test_other_errors_keep_their_traceback(monkeypatch, capsys):
    for error in (OSError("of no file"), KeyError("x")):
        assert "Failed to evaluate" in told(error, monkeypatch, capsys)
