"""Output folder whose files appear together when all are complete, and which never replaces other files."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from shared_components.common.atomic import flush, not_written, write_json
from shared_components.inference import InferenceError

RECORD = "prediction.json"  # name of the record, which lists the results' origin and files
_ASIDE = ".earlier"
_PART = ".surgfl-"  # prefix of the temporary folder's name; the process id follows


class ResultFolder:
    """Writes files to a hidden subfolder first, so that a killed process leaves no partial result.

    It is a subfolder because the folder may be a mounted disk. An earlier result, whose record is `earlier`, is
    replaced when the new result is complete. `record` is the file name of the record. Raises
    InferenceError if the folder is a file or contains an unknown record.
    """

    def __init__(self, folder: str | Path, record: str = RECORD) -> None:
        self.path, self._record = Path(folder), record
        self.part = self.path / f"{_PART}{os.getpid()}"
        self._made: list[Path] = []  # folders created by this run
        if self.path.exists() and not self.path.is_dir():
            raise InferenceError(f"{folder} is a file; give a folder for the results")
        self.earlier = _earlier_record(self.path / record)
        self._earlier: list[str] = self.earlier["files"]

    def refuse_foreign(self, names: Iterable[str] | None = None) -> None:
        """Raise InferenceError if the folder contains files with these names that are not part of an earlier result.

        None stands for all files that are not hidden.
        """
        if not self.path.exists():
            return
        there = {path.name for path in self.path.iterdir() if not path.name.startswith(".")}
        foreign = there - {self._record, *self._earlier}
        if others := sorted(foreign if names is None else foreign & set(names)):
            raise InferenceError(
                f"folder {self.path} contains {others[0]!r}, which is not part of an earlier result; give another "
                "folder, or move it away"
            )

    def refuse_another(self, **facts: Any) -> None:
        """Raise InferenceError if the record of an earlier result has other values for these keys."""
        for key, value in facts.items():
            if self.earlier.get(key, value) != value:
                raise InferenceError(
                    f"folder {self.path} contains the result of {key} {self.earlier[key]}, not of {value}; give "
                    "another folder, or move it away"
                )

    def begin(self) -> None:
        """Create the hidden folder, and remove the hidden folders of killed processes."""
        self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for left in self.path.glob(f"{_PART}*"):
            process = left.name.removeprefix(_PART)
            if left == self.part or not (process.isdecimal() and psutil.pid_exists(int(process))):
                for path in (left / _ASIDE).glob("*"):  # killed while replacing an earlier result
                    if not (self.path / path.name).exists():
                        path.rename(self.path / path.name)
                shutil.rmtree(left)
        self.part.mkdir(parents=True)

    def appear(self, facts: Mapping[str, Any]) -> None:
        """Move the files to their final names and write the record; an error undoes both.

        A preliminary record is written first, so that the files are known if the process is killed. Raises NotWritten
        if a file cannot be written.
        """
        for path in self.part.rglob("*"):
            try:
                flush(path)  # a full disk may be reported only now
            except OSError as error:
                raise not_written(path, error) from error
        names = sorted(path.name for path in self.part.iterdir())
        record, aside = self.path / self._record, self.part / _ASIDE
        for name in names:
            if (self.path / name).exists() and name not in self._earlier:
                raise InferenceError(f"{self.path / name} was created by another program; give another folder")
        aside.mkdir()
        if record.exists():
            shutil.copy2(record, aside)
        try:
            write_json(record, {"files": sorted({*names, *self._earlier}), "complete": False})
            for name in self._earlier:
                if (self.path / name).exists():
                    (self.path / name).rename(aside / name)
            for name in names:
                (self.part / name).rename(self.path / name)
            write_json(record, {**facts, "files": names, "complete": True})
        except BaseException:
            self._put_back(names)
            raise
        shutil.rmtree(self.part)

    def _put_back(self, names: Iterable[str]) -> None:
        """Undo `appear` by renaming, since the disk may be full."""
        for name in names:
            if not (self.part / name).exists():
                (self.path / name).rename(self.part / name)
        (self.path / self._record).unlink(missing_ok=True)
        for path in (self.part / _ASIDE).iterdir():
            path.rename(self.path / path.name)

    def abandon(self) -> None:
        """Remove the new files; keep an earlier result."""
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
        raise InferenceError(f"{record} is not the record of a prediction; give another folder, or move it away")
    return facts
