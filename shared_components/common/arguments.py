"""Check arguments of methods before the first round; errors name the method, the argument and the value."""

import math
import sys
from collections.abc import Collection, Iterable
from typing import Literal


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
    """Raise ValueError for a value that is not a number in a range, as for NaN, infinity, booleans and text.

    Args:
        method, name, value: Method, argument and value, for the error message.
        low, high: Ends of the range; an infinite `high` means no upper end.
        ends: Whether ``low`` and ``high`` are included, in interval notation.
        whole: Whether only whole numbers are accepted: 4, not 4.0.
        null: Meaning of None; without it None is refused.
    """
    if value is None and null is not None:
        return
    kinds = int if whole else (int, float)
    if isinstance(value, kinds) and not isinstance(value, bool) and _inside(value, low, high, ends):
        return
    other = f", or null for {null}" if null else ""
    form = f"it is a {'whole ' * whole}number, {range_in_words(low, high, ends)}{other}"
    raise ValueError(f"{method}: {name} is {value!r}; {form}")


def range_in_words(low: float, high: float, ends: str) -> str:
    """Return an interval in words: "at least 0 and below 1", or "at least 0" without an upper end."""
    least = f"{'at least' if ends[0] == '[' else 'above'} {low}"
    return f"{least} and {'at most' if ends[1] == ']' else 'below'} {high}" if math.isfinite(high) else least


def _inside(value: float, low: float, high: float, ends: str) -> bool:
    if not abs(value) <= sys.float_info.max:  # NaN, infinity, and an int too large for a float
        return False
    from_low = value >= low if ends[0] == "[" else value > low
    to_high = value <= high if ends[1] == "]" else value < high
    return from_low and to_high


def true_or_false(method: str, name: str, value: object) -> None:
    """Raise ValueError unless the value is a boolean: the text "false" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{method}: {name} is {value!r}; it is true or false, without quotation marks")


def require_list(names: Collection[str], what: str, example: str = "head", *, least: int = 1) -> None:
    """Raise ValueError for a value that is not a list of names, and for an empty list unless ``least`` is 0.

    The error message begins with ``what``, such as ``fedper: personal``, and gives ``example`` as a valid name.
    """
    if isinstance(names, str):
        raise ValueError(f"{what} is the text {names!r}; write a list: [{names!r}]")
    if not isinstance(names, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{what} is {names!r}; write a list of names, such as [{example!r}]")
    if len(names) < least:
        raise ValueError(f"{what} names no module; name at least one, such as {example!r}")


def one_of(method: str, name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ValueError with the choices if a value is not one of them."""
    if value not in (known := list(choices)):
        raise ValueError(f"{method}: {name} {value!r} is unknown; use one of {', '.join(known)}")


def height_and_width(option: str, text: str) -> tuple[int, int]:
    """Parse an option's value ``512x640`` as (512, 640); raise ValueError for another form or a side of 0."""
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise ValueError(f"{option} is {text!r}; give height and width such as 512x640")
    between(option, "height", int(height), 1, whole=True)
    between(option, "width", int(width), 1, whole=True)
    return int(height), int(width)
