"""Limit untrusted sections of plain values: the number of values, the length of texts, the depth."""

from collections.abc import Mapping

MOST_VALUES, LONGEST_TEXT, DEEPEST = 1000, 1000, 4


def check_amount(where: str, value: object) -> None:
    """Raise ValueError for a section that is too large; the message begins with `where` and names the key."""
    if (count := _count(where, value, 1)) > MOST_VALUES:
        raise ValueError(f"{where} has {count} values; write at most {MOST_VALUES}")


def _count(where: str, value: object, depth: int) -> int:
    """Count plain values; an empty list or mapping counts as one."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise ValueError(f"{where} is a text of {len(value)} characters; write at most {LONGEST_TEXT}")
    if not isinstance(value, Mapping | list | tuple):
        return 1
    if depth > DEEPEST:
        raise ValueError(f"{where} is nested deeper than {DEEPEST} levels; write it flatter")
    if not isinstance(value, Mapping):
        return max(1, sum(_count(where, item, depth + 1) for item in value))
    if odd := [name for name in value if not isinstance(name, str) or len(name) > LONGEST_TEXT]:
        raise ValueError(f"{where} has the key {odd[0]!r:.80}; a key is a short text")
    return max(1, sum(_count(f"{where}.{name}", item, depth + 1) for name, item in value.items()))
