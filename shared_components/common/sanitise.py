"""Text from others: what may be taken for a name, and how any of it is shown.

A terminal obeys what it prints. Names and sentences of another party therefore never reach one as they came.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

LONGEST_NAME = 100  # characters of a class's, a metric's or a loss term's name
LONGEST_SENTENCE = 1000  # characters of what another party gives for a reason

_KEPT = {"\n", "\t"}
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")


def is_plain(text: object, longest: int = LONGEST_NAME) -> bool:
    """Say whether a value is a short text that prints as it reads: no line break, escape or turn of direction."""
    return isinstance(text, str) and 0 < len(text) <= longest and text.isprintable()


def one_line(text: object, longest: int = LONGEST_SENTENCE) -> str:
    """Return another party's text on one line of at most so many characters, without what a terminal obeys."""
    if is_plain(text, longest):
        return str(text)
    words = " ".join(printable(str(text)[: 10 * longest]).split())
    return words if len(words) <= longest else f"{words[: longest - 3]}..."


def is_one_word(text: str) -> bool:
    """Say whether a line of a shell's language, as FLARE starts its processes by, keeps a text such as a path whole."""
    return not set(text) & _SPLIT


def printable(text: str) -> str:
    """Return text without what a terminal obeys: escapes, control characters and turns of the writing direction.

    Line breaks and tabs stay: our own tables are made of them.
    """
    if text.isprintable():
        return text
    return "".join(c for c in _ESCAPES.sub("", text) if c in _KEPT or unicodedata.category(c) not in _OBEYED)


def table_cells(row: Iterable[object]) -> list[object]:
    """Return a row for a CSV file, in which a spreadsheet finds no formula.

    Text that would begin one gets an apostrophe before it (OWASP, CSV injection); numbers stay what they are.
    """
    return [f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in row]


def _is_formula(text: str) -> bool:
    return text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(text)


_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|inf|nan)")
_SPLIT = frozenset(" \t\n\r'\"\\#")
_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
