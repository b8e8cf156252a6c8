"""A folder of results that appear together once all are complete, and never replace foreign files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from shared_components.common.atomic import flush, not_written, write_json
from shared_components.inference import InferenceError

RECORD = "prediction.json"
"""Records what made the results, and their files."""
_ASIDE = ".earlier"
_PART = ".surgfl-"  # begins the name of the folder in which the files are made; the process's id ends it


class ResultFolder:
    """Files that are made in a hidden subfolder, so that a killed process leaves no half result.

    A subfolder, since the folder may be a mounted disk. An earlier result, whose record is `earlier`, is replaced when
    the new one is complete. An InferenceError names a folder that is a file or has a foreign record. `record` is the
    name of the record's file.
    """

    def __init__(self, folder: str | Path, record: str = RECORD) -> None:
        self.path, self._record = Path(folder), record
        self.part = self.path / f"{_PART}{os.getpid()}"
        self._made: list[Path] = []  # folders that were not there
        if self.path.exists() and not self.path.is_dir():
            raise InferenceError(f"{folder} is a file; give a folder for the results")
        self.earlier = _earlier_record(self.path / record)
        self._earlier: list[str] = self.earlier["files"]

    def refuse_foreign(self, names: Iterable[str] | None = None) -> None:
        """Refuse to replace files and folders of these names that are not of an earlier result; InferenceError.

        None: refuse whatever is there and not hidden.
        """
        if not self.path.exists():
            return
        there = {path.name for path in self.path.iterdir() if not path.name.startswith(".")}
        foreign = there - {self._record, *self._earlier}
        if found := sorted(foreign if names is None else foreign & set(names)):
            raise InferenceError(
                f"folder {self.path} holds {found[0]!r}, which is not of an earlier result; give another folder, or "
                "move it away"
            )

    def refuse_another(self, **facts: Any) -> None:
        """Refuse to replace an earlier result whose record has other facts; InferenceError."""
        for key, value in facts.items():
            if self.earlier.get(key, value) != value:
                raise InferenceError(
                    f"folder {self.path} holds the result of {key} {self.earlier[key]}, and not of {value}; give "
                    "another folder, or move it away"
                )

    def begin(self) -> None:
        """Create the hidden folder, and remove those of killed processes."""
        self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for left in self.path.glob(f"{_PART}*"):
            if left == self.part or not _is_alive(left.name.removeprefix(_PART)):
                for path in (left / _ASIDE).glob("*"):  # it was killed while it replaced an earlier result
                    if not (self.path / path.name).exists():
                        path.rename(self.path / path.name)
                shutil.rmtree(left)
        self.part.mkdir(parents=True)

    def appear(self, facts: Mapping[str, Any]) -> None:
        """Move the files to their names, and record them; an error undoes it.

        The record is written first as well, so that after a kill half-way our files are known.

        Raises:
            NotWritten: The disk refuses a file; the sentence names it.
        """
        for path in self.part.rglob("*"):
            try:
                flush(path)  # tables and videos, which grow frame by frame; a full disk may say so only now
            except OSError as error:
                raise not_written(path, error) from error
        made = sorted(path.name for path in self.part.iterdir())
        record, aside = self.path / self._record, self.part / _ASIDE
        for name in made:
            if (self.path / name).exists() and name not in self._earlier:
                raise InferenceError(f"{self.path / name} has come meanwhile, of another program; give another folder")
        aside.mkdir()
        if record.exists():
            shutil.copy2(record, aside)
        try:
            write_json(record, {"files": sorted({*made, *self._earlier}), "complete": False})
            for name in self._earlier:
                if (self.path / name).exists():
                    (self.path / name).rename(aside / name)
            for name in made:
                (self.part / name).rename(self.path / name)
            write_json(record, {**facts, "files": made, "complete": True})
        except BaseException:
            self._put_back(made)
            raise
        shutil.rmtree(self.part)

    def _put_back(self, made: Iterable[str]) -> None:
        """Undo `appear`, without writing to a disk that may be full."""
        for name in made:
            if not (self.part / name).exists():
                (self.path / name).rename(self.part / name)
        (self.path / self._record).unlink(missing_ok=True)
        for path in (self.part / _ASIDE).iterdir():
            path.rename(self.path / path.name)

    def abandon(self) -> None:
        """Remove the new files; an earlier result stays."""
        shutil.rmtree(self.part, ignore_errors=True)
        for folder in self._made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _earlier_record(record: Path) -> dict[str, Any]:
    if not record.exists():
        return {"files": []}
    try:
        facts = json.loads(record.read_text(encoding="utf-8"))
        names = facts["files"]
    except (ValueError, KeyError, TypeError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise InferenceError(f"{record} is not of a result of ours; give another folder, or move it away")
    return facts


def _is_alive(process: str) -> bool:
    return process.isdecimal() and psutil.pid_exists(int(process))
