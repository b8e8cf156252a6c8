"""Sanitise untrusted text before it becomes a name or reaches a terminal, which executes escape sequences."""

import re
import unicodedata
from collections.abc import Iterable

LONGEST_NAME = 100  # maximum characters in the name of a class, metric or loss term
LONGEST_SENTENCE = 1000  # maximum characters in a reason that another party gives

_ALLOWED = {"\n", "\t"}
_WITHOUT_ALLOWED = str.maketrans(dict.fromkeys(_ALLOWED))
_CONTROL = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories
_SPLIT = frozenset(" \t\n\r'\"\\#")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|inf|nan)")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")


def is_plain(text: object, longest: int = LONGEST_NAME) -> bool:
    """Return whether a value is a short text without line breaks, escapes and bidirectional control characters."""
    return isinstance(text, str) and 0 < len(text) <= longest and text.isprintable()


def one_line(text: object, longest: int = LONGEST_SENTENCE) -> str:
    """Return untrusted text as one printable line of at most `longest` characters."""
    if is_plain(text, longest):
        return str(text)
    words = " ".join(printable(str(text)[: 10 * longest]).split())
    return words if len(words) <= longest else f"{words[: longest - 3]}..."


def is_one_word(text: str) -> bool:
    """Return whether a path stays one word in a shell command line; FLARE starts its processes with one."""
    return not set(text) & _SPLIT


def printable(text: str) -> str:
    """Remove escape sequences and control characters, bidirectional ones included; keep line breaks and tabs."""
    if text.translate(_WITHOUT_ALLOWED).isprintable():
        return text
    return "".join(c for c in _ESCAPES.sub("", text) if c in _ALLOWED or unicodedata.category(c) not in _CONTROL)


def table_cells(row: Iterable[object]) -> list[object]:
    """Return a CSV row in which every text that a spreadsheet would read as a formula begins with an apostrophe.

    See OWASP, CSV injection. Numbers are unchanged.
    """
    return [f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in row]


def _is_formula(text: str) -> bool:
    return text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(text)
