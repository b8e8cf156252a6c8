"""Write numbers of things: 1 frame, 2 frames, 1,234 frames."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural unless the number is 1: ("1 video", "3 labelled frames").

    Args:
        number: A whole number.
        noun: In the singular, perhaps with adjectives before it.
        plural: If it is not the noun and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
