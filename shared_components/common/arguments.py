"""Refuse a wrong argument of a method when it is built: before the first round, by method, name and value."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from typing import Literal

MODES = ("corrected", "as_released")


def between(
    method: str,
    name: str,
    value: object,
    low: float,
    high: float = math.inf,
    *,
    ends: Literal["[]", "[)", "(]", "()"] = "[]",
    whole: bool = False,
    null: str | None = None,
) -> None:
    """Refuse what is no number of a range; NaN, infinity, truth values and text never are.

    Args:
        method: Begins the sentence, as ``name`` and ``value`` do.
        low, high: The range; infinity: it has no upper end.
        ends: Whether the range holds ``low`` and ``high`` themselves, as intervals are written.
        whole: Take whole numbers alone: 4, and not 4.0.
        null: What None stands for; left out: None is refused.

    Raises:
        ValueError: It is no such number.
    """
    if value is None and null is not None:
        return
    kinds = int if whole else (int, float)
    if isinstance(value, kinds) and not isinstance(value, bool) and _inside(value, low, high, ends):
        return
    other = f", or null for {null}" if null else ""
    raise ValueError(
        f"{method}: {name} is {value!r}; it is a {'whole ' * whole}number, {range_in_words(low, high, ends)}{other}"
    )


def range_in_words(low: float, high: float, ends: str) -> str:
    """Return an interval as "at least 0 and below 1"; without an upper end it is "at least 0"."""
    least = f"{'at least' if ends[0] == '[' else 'above'} {low}"
    return f"{least} and {'at most' if ends[1] == ']' else 'below'} {high}" if math.isfinite(high) else least


def _inside(value: float, low: float, high: float, ends: str) -> bool:
    if not abs(value) <= sys.float_info.max:  # NaN, infinity, and an int that no float holds
        return False
    from_low = value >= low if ends[0] == "[" else value > low
    to_high = value <= high if ends[1] == "]" else value < high
    return from_low and to_high


def true_or_false(method: str, name: str, value: object) -> None:
    """Refuse what is no truth value by ValueError: the text "false" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{method}: {name} is {value!r}; it is true or false, without quotation marks")


def require_list(names: Collection[str], what: str, example: str = "head", *, least: int = 1) -> None:
    """Refuse what is no list of names, and an empty list unless ``least`` is 0.

    Args:
        names: The names of parts or modules.
        what: Which argument they are, such as ``fedper: personal``; begins the sentence.
        example: A name that would do.

    Raises:
        ValueError: It is a plain text, no list, an empty list or has an item that is no text.
    """
    if isinstance(names, str):
        raise ValueError(f"{what} is the text {names!r}; write a list: [{names!r}]")
    if not isinstance(names, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{what} is {names!r}; write a list of names, such as [{example!r}]")
    if len(names) < least:
        raise ValueError(f"{what} names no module; name at least one, such as {example!r}")


def one_of(method: str, name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse what is not among the choices; ValueError lists them."""
    if value not in (known := list(choices)):
        raise ValueError(f"{method}: {name} {value!r} is unknown; use one of {', '.join(known)}")


def check_mode(method: str, mode: object) -> None:
    """Refuse a mode that no method has; ValueError names both."""
    one_of(method, "mode", mode, MODES)


def height_and_width(option: str, text: str) -> tuple[int, int]:
    """Read ``512x640``, given to an option, as (512, 640); ValueError for another form, or where a side is 0."""
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise ValueError(f"{option} is {text!r}; give height and width such as 512x640")
    between(option, "height", int(height), 1, whole=True)
    between(option, "width", int(width), 1, whole=True)
    return int(height), int(width)
