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


def test_a_damaged_file_is_one_sentence(tmp_path, monkeypatch, capsys):
    error = DataError(tmp_path / "a.png", "is damaged", "copy it again")
    assert told(error, monkeypatch, capsys) == f"error: {tmp_path / 'a.png'}: is damaged; copy it again\n"


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch, capsys):
    error = not_written(tmp_path / "best.safetensors", OSError(28, "No space left on device"))
    said = told(error, monkeypatch, capsys)
    assert said.startswith(f"error: {tmp_path / 'best.safetensors'}: could not be written (No space left on device)")
    assert said.count("\n") == 1


def test_a_full_disk_of_no_file_is_one_sentence(monkeypatch, capsys):
    said = told(OSError(28, "No space left on device"), monkeypatch, capsys)
    assert said.startswith("error: a file in output_dir: No space left on device; ") and said.count("\n") == 1


def test_a_sentence_obeys_nobody(tmp_path, monkeypatch, capsys):
    error = DataError(tmp_path / "a\x1b[2J.png", "is damaged", "copy it again")
    assert told(error, monkeypatch, capsys) == f"error: {tmp_path / 'a.png'}: is damaged; copy it again\n"


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
