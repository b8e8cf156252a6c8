"""Results appear together or not at all, and never replace other files."""

import json
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from shared_components.common.atomic import NotWritten, not_written, write_json
from shared_components.inference import InferenceError
from shared_components.inference.folder import ResultFolder


def make(path, *names):
    """Write files of a result, not yet at their final names."""
    folder = ResultFolder(path)
    folder.refuse_foreign()
    folder.begin()
    for name in names:
        (folder.part / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.part / name).write_text(name)
    return folder


def files_in(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_files_appear_at_the_end_and_are_recorded(tmp_path):
    folder = make(tmp_path / "a" / "out", "overlay.mp4", "masks/1.png")
    assert [path for path in (tmp_path / "a" / "out").iterdir() if not path.name.startswith(".")] == []
    folder.appear({"frames": 1})
    assert files_in(tmp_path / "a" / "out") == ["masks/1.png", "overlay.mp4", "prediction.json"]
    record = json.loads((tmp_path / "a" / "out" / "prediction.json").read_text())
    assert record == {"frames": 1, "files": ["masks", "overlay.mp4"], "complete": True}


def test_an_earlier_result_is_replaced_when_the_new_one_is_complete(tmp_path):
    make(tmp_path, "overlay.mp4", "masks/1.png", "masks/2.png").appear({})
    second = make(tmp_path, "masks/1.png", "visible.csv")
    assert (tmp_path / "masks" / "2.png").exists()
    second.appear({})
    assert files_in(tmp_path) == ["masks/1.png", "prediction.json", "visible.csv"]


def test_what_is_abandoned_leaves_the_earlier_result_and_no_folder_that_was_not_there(tmp_path):
    make(tmp_path / "a" / "b", "masks/1.png").abandon()
    assert list(tmp_path.iterdir()) == []
    make(tmp_path, "overlay.mp4").appear({})
    make(tmp_path, "overlay.mp4", "masks/1.png").abandon()
    assert files_in(tmp_path) == ["overlay.mp4", "prediction.json"]


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_disk_that_is_full_when_files_appear_leaves_the_earlier_result(tmp_path, monkeypatch, fails_at):
    make(tmp_path, "overlay.mp4", "masks/1.png").appear({"frames": 1})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    second, calls, write = make(tmp_path, "overlay.mp4", "visible.csv"), [], write_json

    def full(path, value):
        calls.append(path)
        if len(calls) == fails_at:
            raise not_written(path, OSError(28, "No space left on device"))
        write(path, value)

    monkeypatch.setattr("shared_components.inference.folder.write_json", full)
    with pytest.raises(NotWritten, match=r"prediction.json: could not be written \(No space left on device\)"):
        second.appear({"frames": 2})
    second.abandon()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_file_that_the_disk_refuses_at_last_is_named(tmp_path, monkeypatch):
    folder = make(tmp_path / "out", "overlay.mp4")

    full = OSError(28, "No space left on device")  # as fsync says it, of no file
    monkeypatch.setattr("shared_components.inference.folder.flush", Mock(side_effect=full))
    with pytest.raises(NotWritten, match=r"overlay.mp4: could not be written \(No space left on device\)"):
        folder.appear({})
    folder.abandon()
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from shared_components.inference.folder import ResultFolder
folder = ResultFolder(sys.argv[1])
folder.begin()
(folder.part / "overlay.mp4").write_text("half")
rename = Path.rename
def kill(self, target):
    rename(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.rename = kill
if sys.argv[2] == "early":
    os.kill(os.getpid(), signal.SIGKILL)
folder.appear({})
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_what_a_killed_process_leaves_is_replaced(tmp_path, when):
    """Killed early, while files are written; or late, while they are renamed."""
    make(tmp_path, "masks/1.png").appear({})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), when], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "overlay.mp4").exists()
    make(tmp_path, "overlay.mp4").appear({})
    assert files_in(tmp_path) == ["overlay.mp4", "prediction.json"]


def test_an_earlier_result_outlives_a_kill_while_it_is_replaced_and_another_run_that_is_given_up(tmp_path):
    make(tmp_path, "masks/1.png").appear({})
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "late"], check=False)
    assert not (tmp_path / "masks").exists()
    make(tmp_path, "overlay.mp4").abandon()
    assert (tmp_path / "masks" / "1.png").exists()


def test_two_programs_with_one_new_folder_do_not_undo_each_other(tmp_path):
    first = make(tmp_path, "a.csv")
    first.part = first.part.rename(tmp_path / f".surgfl-{os.getppid()}")  # another process
    make(tmp_path, "a.csv").appear({})
    with pytest.raises(InferenceError, match=r"a\.csv was created by another program; give"):
        first.appear({})
    first.abandon()
    assert files_in(tmp_path) == ["a.csv", "prediction.json"]


def test_what_a_living_process_makes_stays(tmp_path):
    other, dead = (tmp_path / f".surgfl-{number}" for number in (os.getppid(), 999_999_999))  # no process has this id
    other.mkdir()
    dead.mkdir()
    make(tmp_path, "a.csv").appear({})
    assert other.exists() and not dead.exists()


@pytest.mark.parametrize("names", [None, ["masks", "notes.txt"]])
def test_what_is_not_of_an_earlier_result_is_never_replaced(tmp_path, names):
    make(tmp_path, "masks/1.png").appear({})
    (tmp_path / ".hidden").write_text("")
    ResultFolder(tmp_path).refuse_foreign(names)
    (tmp_path / "notes.txt").write_text("mine")
    ResultFolder(tmp_path).refuse_foreign(["masks"])  # results may lie beside it
    with pytest.raises(InferenceError, match=r"contains 'notes\.txt', which is not part of an earlier result; give "):
        ResultFolder(tmp_path).refuse_foreign(names)


@pytest.mark.parametrize("text", ["", "[]", '{"files": "masks"}', '{"files": ["../masks"]}', '{"files": [3]}'])
def test_a_record_that_is_not_ours_is_refused(tmp_path, text):
    (tmp_path / "prediction.json").write_text(text)
    with pytest.raises(InferenceError, match=r"prediction\.json is not the record of a prediction"):
        ResultFolder(tmp_path)


def test_a_result_of_another_input_is_not_replaced(tmp_path):
    make(tmp_path / "out", "masks/1.png").appear({"input": "a.mp4"})
    again = ResultFolder(tmp_path / "out")
    again.refuse_another(input="a.mp4")
    with pytest.raises(InferenceError, match=r"contains the result of input a\.mp4, not of b\.mp4; give another"):
        again.refuse_another(input="b.mp4")
    ResultFolder(tmp_path / "new").refuse_another(input="b.mp4")
