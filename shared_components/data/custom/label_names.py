"""The names of labels in a file that ITK-SNAP, or `surgfl segment --nifti`, wrote beside a volume."""

from __future__ import annotations

import re
from pathlib import Path

from shared_components.data.files import DataError, read_text

_FILES = ("*.txt", "*.label")
_TITLE = "ITK-SnAP Label Description File"
_ROW = re.compile(r'\s*(?P<id>\d{1,9})(\s+[\d.]+){4}(\s+[01]){2}\s+"(?P<name>[^"]*)"\s*')
_MOST_BYTES = 1 << 20


def label_names(folder: Path) -> dict[int, str]:
    """Return the names by id of the one file of label descriptions in a folder; none where there is no such file.

    Raises:
        DataError: there are two such files, or a line of one is no description.
    """
    found = [path for pattern in _FILES for path in sorted(folder.glob(pattern)) if _is_description(path)]
    if len(found) > 1:
        raise DataError(found[1], f"describes labels, as {found[0].name} does", "keep one of the two")
    return _read(found[0]) if found else {}


def _is_description(path: Path) -> bool:
    """Say whether a file is one; pipes, folders and whatever else there may be are not."""
    if not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _TITLE in file.read(_MOST_BYTES)
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "check its rights") from error


def _read(path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, line in enumerate(read_text(path, _MOST_BYTES, errors="replace").splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        if not (row := _ROW.fullmatch(line)):
            what = f"has no label description in line {number} ({line.strip():.60})"
            raise DataError(path, what, "save the descriptions again, or move the file away")
        names[int(row["id"])] = row["name"]
    return {value: name for value, name in names.items() if value}
