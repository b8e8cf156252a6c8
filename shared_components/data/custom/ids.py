"""Map pixel values or colours of a site's masks to class names; read ITK-SNAP's label descriptions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from shared_components.common.counted import counted
from shared_components.data.classes import CLASS_MAPS, IGNORED, readable_as
from shared_components.data.files import DataError, read_text

Colour = tuple[int, int, int]  # red, green, blue
Value = int | Colour

BACKGROUND, IGNORE = "background", "ignore"
LARGEST = np.iinfo(np.uint16).max
_BLACK = (0, 0, 0)
_UNKNOWN = -1
_NAMED = 5  # values that an error lists
_TAKEN = ("mean",)  # what tables call the mean over classes
_LONGEST = 60


@dataclass(frozen=True)
class Ids:
    """What the values of a mask are.

    Attributes:
        table: (value, place of its class) pairs; a value is a number, or a colour; `IGNORED` for no class.
        coloured: whether masks are read as colours; a number n is the grey (n, n, n) then.
    """

    table: tuple[tuple[Value, int], ...]
    coloured: bool

    def apply(self, values: np.ndarray, path: Path) -> np.ndarray:
        """Return uint8 (H, W) class ids of a mask's values: whole numbers (H, W), or uint8 RGB (H, W, 3).

        Raises:
            DataError: there are values that the table does not have: which, how many pixels, what to do.
        """
        found = self._of_colours(values) if self.coloured else _lookup(self.table)[values]
        if (unknown := found == _UNKNOWN).any():
            raise unknown_values(path, counts(values[unknown], coloured=self.coloured))
        return found.astype(np.uint8)

    def _of_colours(self, colours: np.ndarray) -> np.ndarray:
        found = np.full(colours.shape[:2], _UNKNOWN, np.int16)
        for value, place in self.table:
            found[cv2.inRange(colours, value, value) > 0] = place  # type: ignore[call-overload]  # colours alone
        return found


def unknown_values(path: Path, found: Mapping[Value, int], where: str = "") -> DataError:
    """Return the error of a mask or volume that holds values (with their pixel counts) which `ids` does not name."""
    most = sorted(found, key=lambda value: -found[value])
    listed = ", ".join(f"{written(value)} ({counted(found[value], 'pixel')})" for value in most[:_NAMED])
    more = f" and {len(most) - _NAMED} more" if len(most) > _NAMED else ""
    hint = "export the masks again without smoothing or compression, or " if len(most) > _NAMED else ""
    what = f"holds {listed}{more}{where}, which 'ids' of site.yaml does not name"
    key = written(most[0]) if isinstance(most[0], int) else f'"{written(most[0])}"'
    return DataError(path, what, f"{hint}name every value there, such as '{key}: {IGNORE}', or correct the mask")


def counts(values: np.ndarray, *, coloured: bool = False) -> dict[Value, int]:
    """Count the pixels of each value: of numbers (...) of an unsigned type, or of uint8 colours (..., 3)."""
    if coloured:
        packed = values.reshape(-1, 3).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        found, pixels = np.unique(packed, return_counts=True)
        return {(int(v) >> 16, int(v) >> 8 & 255, int(v) & 255): int(n) for v, n in zip(found, pixels, strict=True)}
    pixels = np.bincount(values.ravel())
    return {int(value): int(pixels[value]) for value in np.flatnonzero(pixels)}


def written(value: Value) -> str:
    """Write a value as site.yaml has it, without quotes: 7, #ff8000."""
    return str(value) if isinstance(value, int) else "#" + bytes(value).hex()


def parse_ids(given: Any) -> dict[Value, str]:
    """Read an `ids` table; what is 0 or black is background unless it says otherwise.

    Raises:
        ValueError: it is no table, or a value or a name is none: a sentence that begins with `'ids'`.
    """
    if not isinstance(given, Mapping) or not given:
        hint = "; a colour needs quotes, since YAML takes #... for a remark" if given is None else ""
        raise ValueError(
            f"'ids' is {given!r}; write what the masks' values are, such as {{1: grasper, 2: suction}}{hint}"
        )
    named = [(parse_value(key), class_name(name, key)) for key, name in given.items()]
    coloured = any(not isinstance(value, int) for value, _ in named)
    table: dict[Value, str] = {}
    for value, name in named:
        if coloured and isinstance(value, int):
            value = grey(value)
        if value in table:
            raise ValueError(f"'ids' has {written(value)} twice; keep one of them")
        table[value] = name
    table.setdefault(_BLACK if coloured else 0, BACKGROUND)
    if not set(table.values()) - {BACKGROUND, IGNORE}:
        raise ValueError(f"'ids' names no class besides {BACKGROUND}; name at least one, such as 1: grasper")
    return table


def parse_words(given: Any) -> dict[str, str]:
    """Read an `ids` table of binary masks, one per class: words in their names, and the classes.

    Raises:
        ValueError: it is no table, or a name is none: a sentence that begins with `'ids'`.
    """
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            f"'ids' is {given!r}; write what the names of the masks call each class, such as {{gr: grasper}}"
        )
    table = {str(word): class_name(name, word) for word, name in given.items()}
    if not set(table.values()) - {BACKGROUND, IGNORE}:
        raise ValueError(f"'ids' names no class besides {BACKGROUND}; name at least one, such as gr: grasper")
    return table


def places(classes: Sequence[str]) -> dict[str, int]:
    """Return the place of each class, and the value of ignored pixels."""
    return {name: place for place, name in enumerate(classes)} | {IGNORE: IGNORED}


def class_ids(table: Mapping[Value, str], classes: Sequence[str]) -> Ids:
    """Return the table with places among classes instead of names."""
    coloured, place = any(not isinstance(value, int) for value in table), places(classes)
    return Ids(tuple((value, place[name]) for value, name in table.items()), coloured)


def own_classes(names: Iterable[str], given: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the classes that masks tell apart, and those that the site has, which may be coarser ones.

    Names of a public class map take that map's order, so that sites of both sorts agree; others the alphabet's, so
    that sites agree which list their values in another order.

    Args:
        names: those in `ids`.
        given: `classes` of site.yaml: a class map's name, or a list of names, of which `ids` may have a part; None:
            those in `ids`.

    Raises:
        ValueError: a sentence that begins with `'classes'`.
    """
    needed = set(names) - {BACKGROUND, IGNORE}
    if given is None:
        known = [classes for classes in CLASS_MAPS.values() if set(classes[1:]) == needed]
        classes = known[0] if known else (BACKGROUND, *sorted(needed))
    elif isinstance(given, str):
        return _of_map(needed, given)
    else:
        classes = _listed(given)
    if len(classes) > IGNORED:
        raise ValueError(f"'classes' has {len(classes)} names; there may be {IGNORED}, background included")
    if missing := sorted(needed - set(classes)):
        raise ValueError(f"'classes' has no {missing[0]!r}, which 'ids' names; add it, or correct 'ids'")
    return classes, classes


def _of_map(needed: set[str], name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if name not in CLASS_MAPS:
        raise ValueError(
            f"'classes' is {name!r}; write a list of names, or one of the class maps {', '.join(CLASS_MAPS)}"
        )
    wanted = CLASS_MAPS[name]
    for candidate in [wanted, *(c for c in CLASS_MAPS.values() if wanted in readable_as(c))]:
        if needed <= set(candidate):
            return candidate, wanted
    odd = sorted(needed - set(wanted))[0]
    raise ValueError(
        f"'classes' is {name!r}, which is {', '.join(wanted[1:])}, and 'ids' names {odd!r}; give in 'ids' every value "
        "one of these names, or write a list of names"
    )


def _listed(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given:
        raise ValueError(f"'classes' is {given!r}; write a list of names, such as [grasper, suction]")
    names = [class_name(name) for name in given]
    if IGNORE in names:
        raise ValueError(f"'classes' lists {IGNORE!r}, which is no class; leave it out")
    classes = (BACKGROUND, *(name for name in names if name != BACKGROUND))
    if repeated := [name for name, count in Counter(classes).items() if count > 1]:
        raise ValueError(f"'classes' has {repeated[0]!r} twice; keep one of them")
    return classes


def parse_value(key: Any) -> Value:
    """Read a number, or a colour: text of six hexadecimal digits or of three numbers, or a list of three.

    Raises:
        ValueError: it is neither, or too large: a sentence that begins with `'ids'`.
    """
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key <= LARGEST:
        return key
    if isinstance(key, str) and re.fullmatch(r"#[0-9a-fA-F]{6}", key.strip()):
        red, green, blue = bytes.fromhex(key.strip()[1:])
        return red, green, blue
    numbers = re.findall(r"-?\d+", key) if isinstance(key, str) and "," in key else key
    if isinstance(numbers, list | tuple) and len(numbers) == 3 and not isinstance(key, bool):
        channels = [int(n) for n in numbers if isinstance(n, str | int) and not isinstance(n, bool)]
        if len(channels) == 3 and all(0 <= n <= 255 for n in channels):
            return channels[0], channels[1], channels[2]
    raise ValueError(
        f"'ids' has the value {key!r}; write a whole number from 0 to {LARGEST}, or a colour such as \"#ff8000\" or "
        "[255, 128, 0]"
    )


def grey(value: int) -> Colour:
    """Return the colour that a number stands for among colours."""
    if value > 255:
        raise ValueError(f"'ids' has the value {value} beside colours, of which no channel is above 255; correct it")
    return value, value, value


def class_name(name: Any, key: Any = None) -> str:
    """Return a class's name where it can be one; `key` is the value that it is of.

    Raises:
        ValueError: it cannot: a sentence.
    """
    where = "'classes' lists" if key is None else f"'ids' calls {key!r}"
    good = isinstance(name, str) and name.strip() == name and name.isprintable() and 0 < len(name) <= _LONGEST
    if not good or "," in name or name in _TAKEN:
        raise ValueError(
            f"{where} {name!r}; a class's name is a text of at most {_LONGEST} letters without commas, in quotes if it "
            f"looks like a number, and not {_TAKEN[0]!r}"
        )
    return name


@lru_cache(maxsize=16)
def _lookup(table: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return the class id of every value up to the largest that a mask can hold, int16."""
    found = np.full(LARGEST + 1, _UNKNOWN, np.int16)
    for value, place in table:
        found[value] = place
    return found


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
