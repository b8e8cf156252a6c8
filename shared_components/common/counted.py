"""Write numbers with nouns, and shorten long lists for a message."""

from collections.abc import Iterable

FEW = 6
"""Maximum number of entries that a message lists."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1: "1 video", "3 labelled frames"."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def first_few(texts: Iterable[str], joint: str = ", ", *, most: int = FEW) -> str:
    """Join the first texts and count the others: "a, b, c and 61 more"."""
    every = list(texts)
    rest = f" and {len(every) - most:,} more" if len(every) > most else ""
    return joint.join(every[:most]) + rest
