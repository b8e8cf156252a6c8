"""Map pixel values or colours of a site's masks to class names."""

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
from shared_components.data.files.classes import CLASS_MAPS, IGNORED, readable_as
from shared_components.data.files.images import DataError
from shared_components.data.files.label_names import Colour, Value

BACKGROUND, IGNORE = "background", "ignore"
_LARGEST = np.iinfo(np.uint16).max
_UNKNOWN = -1
_LISTED = 5  # values that an error message lists
_RESERVED = "mean"  # tables use it for the mean over classes
_LONGEST = 60


@dataclass(frozen=True)
class Ids:
    """Class id of each mask value; the id of ignored pixels is `IGNORED`."""

    table: tuple[tuple[Value, int], ...]
    coloured: bool  # masks are read as colours, and the number n is the grey (n, n, n)

    def apply(self, values: np.ndarray, path: Path) -> np.ndarray:
        """Return uint8 (H, W) class ids of numbers (H, W) or uint8 RGB (H, W, 3); DataError for unknown values."""
        if self.coloured:
            classes = np.full(values.shape[:2], _UNKNOWN, np.int16)
            for value, number in self.table:
                classes[cv2.inRange(values, value, value) > 0] = number  # type: ignore[call-overload]  # a colour
        else:
            classes = _lookup(self.table)[values]
        if (unknown := classes == _UNKNOWN).any():
            raise unknown_values(path, counts(values[unknown], coloured=self.coloured))
        return classes.astype(np.uint8)


def unknown_values(path: Path, pixels: Mapping[Value, int], where: str = "") -> DataError:
    """Return the error for values (with their pixel counts) that are missing in `ids`."""
    most = sorted(pixels, key=lambda value: -pixels[value])
    listed = ", ".join(f"{written(value)} ({counted(pixels[value], 'pixel')})" for value in most[:_LISTED])
    more = f" and {len(most) - _LISTED} more" if len(most) > _LISTED else ""
    hint = "export the masks again without smoothing or compression, or " if more else ""
    what = f"contains {listed}{more}{where}, which 'ids' of site.yaml does not name"
    key = written(most[0]) if isinstance(most[0], int) else f'"{written(most[0])}"'
    return DataError(path, what, f"{hint}name every value there, such as '{key}: {IGNORE}', or correct the mask")


def counts(values: np.ndarray, *, coloured: bool = False) -> dict[Value, int]:
    """Count the pixels of each value, given unsigned numbers (...) or uint8 colours (..., 3)."""
    if coloured:
        packed = values.reshape(-1, 3).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        unique, pixels = np.unique(packed, return_counts=True)
        return {(int(v) >> 16, int(v) >> 8 & 255, int(v) & 255): int(n) for v, n in zip(unique, pixels, strict=True)}
    pixels = np.bincount(values.ravel())
    return {int(value): int(pixels[value]) for value in np.flatnonzero(pixels)}


def written(value: Value) -> str:
    """Format a value as in site.yaml, without quotes: 7, #ff8000."""
    return str(value) if isinstance(value, int) else "#" + bytes(value).hex()


def parse_ids(given: Any) -> dict[Value, str]:
    """Read an `ids` table; 0 or black is background unless the table names it. ValueError if it is invalid."""
    if not isinstance(given, Mapping) or not given:
        hint = "; a colour needs quotes, since YAML takes #... for a remark" if given is None else ""
        raise ValueError(f"'ids' is {given!r}; write what the masks' values are, such as {{1: grasper}}{hint}")
    names = [(parse_value(key), class_name(name, key)) for key, name in given.items()]
    coloured = any(not isinstance(value, int) for value, _ in names)
    table: dict[Value, str] = {}
    for value, name in names:
        if coloured and isinstance(value, int):
            value = grey(value)
        if value in table:
            raise ValueError(f"'ids' has {written(value)} twice; keep one of them")
        table[value] = name
    table.setdefault((0, 0, 0) if coloured else 0, BACKGROUND)
    _refuse_no_class(table.values(), "1: grasper")
    return table


def parse_words(given: Any) -> dict[str, str]:
    """Read an `ids` table of binary masks: the class of each word in their names. ValueError if it is invalid."""
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"'ids' is {given!r}; write the word for each class in the masks' names: {{gr: grasper}}")
    table = {str(word): class_name(name, word) for word, name in given.items()}
    _refuse_no_class(table.values(), "gr: grasper")
    return table


def _refuse_no_class(names: Iterable[str], example: str) -> None:
    if not set(names) - {BACKGROUND, IGNORE}:
        raise ValueError(f"'ids' names no class besides {BACKGROUND}; name at least one, such as {example}")


def places(classes: Sequence[str]) -> dict[str, int]:
    """Return the id of each class and of ignored pixels."""
    return {name: place for place, name in enumerate(classes)} | {IGNORE: IGNORED}


def class_ids(table: Mapping[Value, str], classes: Sequence[str]) -> Ids:
    """Return the table with class ids instead of names."""
    place = places(classes)
    coloured = any(not isinstance(value, int) for value in table)
    return Ids(tuple((value, place[name]) for value, name in table.items()), coloured)


def own_classes(names: Iterable[str], given: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the classes of the masks, and the site's classes, which may be coarser; ValueError if they are invalid.

    Names of a public class map have the map's order, so that such sites agree with public data. Other names are sorted,
    so that sites agree that list their values in another order. `names` are the class names in `ids`. `given` is
    `classes` of site.yaml: a class map, a list of names that includes those in `ids`, or None for the names in `ids`.
    """
    needed = set(names) - {BACKGROUND, IGNORE}
    if isinstance(given, str):
        return _of_map(needed, given)
    if given is None:
        maps = [classes for classes in CLASS_MAPS.values() if set(classes[1:]) == needed]
        classes = maps[0] if maps else (BACKGROUND, *sorted(needed))
    else:
        classes = _from_list(given)
    if len(classes) > IGNORED:
        raise ValueError(f"'classes' has {len(classes)} names; there may be {IGNORED}, background included")
    if missing := sorted(needed - set(classes)):
        raise ValueError(f"'classes' has no {missing[0]!r}, which 'ids' names; add it, or correct 'ids'")
    return classes, classes


def _of_map(needed: set[str], name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if name not in CLASS_MAPS:
        raise ValueError(f"'classes' is {name!r}; write a list of names, or one of {', '.join(CLASS_MAPS)}")
    classes = CLASS_MAPS[name]
    for finer in [classes, *(c for c in CLASS_MAPS.values() if classes in readable_as(c))]:
        if needed <= set(finer):
            return finer, classes
    what = f"which is {', '.join(classes[1:])}, and 'ids' names {min(needed - set(classes))!r}"
    remedy = "give in 'ids' every value one of these names, or write a list of names"
    raise ValueError(f"'classes' is {name!r}, {what}; {remedy}")


def _from_list(given: Any) -> tuple[str, ...]:
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
    """Read a number, or a colour: #ff8000, "255, 128, 0" or [255, 128, 0]; ValueError for another key."""
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key <= _LARGEST:
        return key
    if isinstance(key, str) and re.fullmatch(r"#[0-9a-fA-F]{6}", key.strip()):
        red, green, blue = bytes.fromhex(key.strip()[1:])
        return red, green, blue
    numbers = re.findall(r"-?\d+", key) if isinstance(key, str) and "," in key else key
    if isinstance(numbers, list | tuple) and len(numbers) == 3:
        channels = [int(n) for n in numbers if isinstance(n, str | int) and not isinstance(n, bool)]
        if len(channels) == 3 and all(0 <= n <= 255 for n in channels):
            return channels[0], channels[1], channels[2]
    colours = 'a colour such as "#ff8000" or [255, 128, 0]'
    raise ValueError(f"'ids' has the value {key!r}; write a whole number from 0 to {_LARGEST}, or {colours}")


def grey(value: int) -> Colour:
    """Return the grey that a number means in a table of colours."""
    if value > 255:
        raise ValueError(f"'ids' has the value {value} beside colours, of which no channel is above 255; correct it")
    return value, value, value


def class_name(name: Any, key: Any = None) -> str:
    """Return a class name; `key` is its key in `ids`, or None if it is from `classes`. ValueError if invalid."""
    valid = isinstance(name, str) and name.strip() == name and name.isprintable() and 0 < len(name) <= _LONGEST
    if not valid or "," in name or name == _RESERVED:
        where = "'classes' lists" if key is None else f"'ids' calls {key!r}"
        form = f"a text of at most {_LONGEST} letters without commas, in quotes if it looks like a number"
        raise ValueError(f"{where} {name!r}; a class's name is {form}, and not {_RESERVED!r}")
    return name


@lru_cache(maxsize=16)
def _lookup(table: tuple[tuple[int, int], ...]) -> np.ndarray:
    classes = np.full(_LARGEST + 1, _UNKNOWN, np.int16)
    for value, number in table:
        classes[value] = number
    return classes
