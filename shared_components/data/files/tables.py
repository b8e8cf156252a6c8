"""Read tables of labels, each table once; the address of a row is a path: video01-phase.txt/000025."""

import csv
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.counted import counted
from shared_components.data.files.images import MISSING, DataError, read_text, reading

_MAX_BYTES = 64 << 20  # the longest table of Cholec80, 25 rows per second, has 3 MB
Rows = Mapping[int, tuple[int, ...]]  # whole numbers of each row, by frame number


def row(file: Path, key: int | str) -> tuple[Path, ...]:
    """Return the address of a row by its frame number or another key."""
    return (file / (f"{key:06d}" if isinstance(key, int) else key),)


def numbered_rows(file: Path, *, columns: tuple[int, ...], what: str) -> Rows:
    """Read comma-separated rows of whole numbers that begin with the frame number, without a header.

    ``columns`` are the permitted numbers of values after the frame number; ``what`` is such a row in words, for error
    messages. DataError if the file is missing, a row has another form, or a frame has two rows.
    """
    return _numbered(file, changed(file), columns, what)


@lru_cache(maxsize=512)
def _numbered(file: Path, stamp: int, columns: tuple[int, ...], what: str) -> Rows:
    rows: dict[int, tuple[int, ...]] = {}
    for line, text in enumerate(_text(file).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            number, *values = (int(value) for value in text.split(","))
        except ValueError:
            raise DataError(file, f"has no whole numbers in line {line} ({text[:40]!r})", "copy it again") from None
        if len(values) not in columns:
            labels = f"has {counted(len(values), 'label')} in line {line}, not {what}"
            raise DataError(file, labels, "copy that version's files")
        if number in rows:
            raise DataError(file, f"has frame {number} twice", "copy it again")
        rows[number] = tuple(values)
    return rows


def records(file: Path, *, columns: tuple[str, ...], separator: str = ",") -> tuple[Mapping[str, str], ...]:
    """Read a table whose header has these columns, and maybe more; DataError if the file or a column is missing."""
    return _records(file, changed(file), columns, separator)


@lru_cache(maxsize=4)  # readers cache what they make of long tables
def _records(file: Path, stamp: int, columns: tuple[str, ...], separator: str) -> tuple[Mapping[str, str], ...]:
    reader = csv.DictReader(_text(file).lstrip("\ufeff").splitlines(), delimiter=separator)
    try:
        names, rows = [name.strip() for name in reader.fieldnames or ()], list(reader)
    except csv.Error as error:  # such as an open quote
        raise DataError(file, f"is no table ({error}, line {reader.line_num})", "copy it again") from error
    for column in columns:
        if column not in names:
            raise DataError(file, f"has no column {column!r}, only {', '.join(names) or 'none'}", "copy it again")
    return tuple(
        {key.strip(): (value or "").strip() for key, value in record.items() if isinstance(key, str)} for record in rows
    )


def read_json(file: Path) -> Any:
    """Read a JSON file once; DataError if it is missing or invalid."""
    return _json(file, changed(file))


@lru_cache(maxsize=64)
def _json(file: Path, stamp: int) -> Any:
    try:
        return json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise DataError(file, f"is no JSON ({error})", "copy it again") from error


def find_row(rows: Mapping[int, Any], address: Path, video: str = "the video") -> Any:
    """Return the row at an address; DataError if the table has no such row."""
    number = int(address.name)
    if number not in rows:
        what = f"has no row of frame {number}, but {counted(len(rows), 'row')}"
        raise DataError(address.parent, what, f"complete it, or take the frame out of {video}")
    return rows[number]


def binary_row(values: tuple[int, ...], address: Path) -> np.ndarray:
    """Convert a row to uint8 (N,); DataError for a number other than 0 and 1."""
    if other := sorted(set(values) - {0, 1}):
        raise DataError(address.parent, f"has {other[:8]} at {address.name} instead of 0 and 1", "copy it again")
    return np.array(values, np.uint8)


def class_of_row(values: tuple[int, ...], address: Path, count: int) -> np.ndarray:
    """Convert a row to a class below ``count``, int64 (): its single number, or the place of its single 1."""
    places = list(values) if len(values) == 1 else [place for place, value in enumerate(values) if value == 1]
    if len(places) != 1 or not 0 <= places[0] < count:
        what = f"names {len(places)} classes at {address.name} ({places[:8]}) instead of one from 0 to {count - 1}"
        raise DataError(address.parent, what, "correct the row")
    return np.array(places[0], np.int64)


def changed(file: Path) -> int:
    """Return the modification time of a file in ns; DataError if it is missing."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        raise DataError(file, *MISSING) from None


def _text(file: Path) -> str:
    with reading(file, "cannot be read ({})", "copy it again", UnicodeDecodeError):
        return read_text(file, _MAX_BYTES)
