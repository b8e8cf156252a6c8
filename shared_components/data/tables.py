"""Read labels from tables, each table once; a row's address is a path below its file: video01-phase.txt/000025."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.counted import counted
from shared_components.data.files import MISSING, DataError, read_text

MOST_BYTES = 64 << 20
"""Of a table; Cholec80's longest, a row for each 25th of a second, has 3 MB."""
Rows = Mapping[int, tuple[int, ...]]
"""The whole numbers of each row, by its frame's number."""


def row(file: Path, key: int | str) -> tuple[Path, ...]:
    """Return the address of a row, of a frame's number or of another key."""
    return (file / (f"{key:06d}" if isinstance(key, int) else key),)


def numbered_rows(file: Path, *, columns: tuple[int, ...], what: str) -> Rows:
    """Read rows of whole numbers, commas between them, that begin with the frame's number; there is no header.

    Args:
        columns: how many numbers a row may have beside the frame's; all rows have the same.
        what: such rows in words, with the version of the data set, for their refusal.

    Raises:
        DataError: the file is missing, or a row is not so, or a frame has two.
    """
    return _numbered(file, changed(file), columns, what)


@lru_cache(maxsize=512)
def _numbered(file: Path, stamp: int, columns: tuple[int, ...], what: str) -> Rows:
    found: dict[int, tuple[int, ...]] = {}
    for line, text in enumerate(_text(file).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            number, *values = (int(value) for value in text.split(","))
        except ValueError:
            raise DataError(file, f"holds no whole numbers in line {line} ({text[:40]!r})", "copy it again") from None
        if len(values) not in columns:
            raise DataError(
                file, f"has {counted(len(values), 'label')} in line {line}, not {what}", "copy that version's files"
            )
        if number in found:
            raise DataError(file, f"has frame {number} twice", "copy it again")
        found[number] = tuple(values)
    return found


def records(file: Path, *, columns: tuple[str, ...], separator: str = ",") -> tuple[Mapping[str, str], ...]:
    """Read a table with a header that has these columns, and may have more.

    Raises:
        DataError: the file or a column is missing.
    """
    return _records(file, changed(file), columns, separator)


@lru_cache(maxsize=4)  # who reads long ones keeps what it makes of them
def _records(file: Path, stamp: int, columns: tuple[str, ...], separator: str) -> tuple[Mapping[str, str], ...]:
    reader = csv.DictReader(_text(file).lstrip("\ufeff").splitlines(), delimiter=separator)
    try:
        names, rows = [name.strip() for name in reader.fieldnames or ()], list(reader)
    except csv.Error as error:  # such as a quote that nothing closes
        raise DataError(file, f"is no table ({error}, line {reader.line_num})", "copy it again") from error
    for column in columns:
        if column not in names:
            raise DataError(file, f"has no column {column!r}, but {', '.join(names) or 'none'}", "copy it again")
    return tuple(
        {key.strip(): (value or "").strip() for key, value in one.items() if isinstance(key, str)} for one in rows
    )


def read_json(file: Path) -> Any:
    """Read a JSON file once.

    Raises:
        DataError: it is missing or is none.
    """
    return _json(file, changed(file))


@lru_cache(maxsize=64)
def _json(file: Path, stamp: int) -> Any:
    try:
        return json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise DataError(file, f"is no JSON ({error})", "copy it again") from error


def of_row(found: Mapping[int, Any], address: Path, video: str = "the video") -> Any:
    """Return what a table has of the frame that an address names.

    Raises:
        DataError: it has no such row.
    """
    number = int(address.name)
    if number not in found:
        what = f"has no row of frame {number}, but {counted(len(found), 'row')}"
        raise DataError(address.parent, what, f"complete it, or take the frame out of {video}")
    return found[number]


def zeros_and_ones(values: tuple[int, ...], address: Path) -> np.ndarray:
    """Return a row as uint8 (N,).

    Raises:
        DataError: it holds another number.
    """
    if other := sorted(set(values) - {0, 1}):
        raise DataError(
            address.parent, f"holds {other[:8]} at {address.name}, where 0 and 1 are expected", "copy it again"
        )
    return np.array(values, np.uint8)


def number_of_one(values: tuple[int, ...], address: Path, count: int) -> np.ndarray:
    """Return a class as int64 (): the one number of a row, or the place of its only 1.

    Raises:
        DataError: there are several or none, or it is none of `count` classes.
    """
    places = list(values) if len(values) == 1 else [place for place, value in enumerate(values) if value == 1]
    if len(places) != 1 or not 0 <= places[0] < count:
        what = (
            f"names {len(places)} classes at {address.name} ({places[:8]}), where one of 0 to {count - 1} is expected"
        )
        raise DataError(address.parent, what, "correct the row")
    return np.array(places[0], np.int64)


def changed(file: Path) -> int:
    """Return when a file was written, in ns.

    Raises:
        DataError: it is missing.
    """
    try:
        return file.stat().st_mtime_ns
    except OSError:
        raise DataError(file, *MISSING) from None


def _text(file: Path) -> str:
    try:
        return read_text(file, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(file, f"cannot be read ({error})", "copy it again") from error
