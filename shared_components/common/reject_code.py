"""Refuse what somebody would run: the texts and keys by which MONAI and FLARE find code in a config.

What arrives at a hospital (a job, a message, a checkpoint's header) holds names and numbers. MONAI runs what begins
with ``$``, follows ``@`` and ``%`` to other places, imports what ``_target_`` names and evaluates a ``logging_file``;
FLARE builds what ``path`` names and puts variables of the machine's environment in place of ``{$NAME}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPRESSIONS = ("$", "@", "%")
"""What MONAI's configs begin an expression, a reference or a macro with."""
KEYS = frozenset({"class_attributes", "class_path", "config_type", "imports", "logging_file", "path"})
"""Keys that name code, beside all that MONAI writes between underscores: ``_target_``, ``_requires_``."""
DEEPEST = 32


def is_expression(text: str) -> bool:
    """Say whether MONAI or FLARE would put something else in the place of a text."""
    return text.lstrip().startswith(EXPRESSIONS) or "{$" in text or "${" in text


def names_code(key: str) -> bool:
    """Say whether a key of a config names something to be run."""
    return key in KEYS or (key.startswith("_") and key.endswith("_"))


def refuse_code(value: Any, where: str, *, level: int = 1) -> None:
    """Refuse plain values that hold an expression or name code, however deep.

    Args:
        value: Mappings, lists, texts, numbers.
        where: Begins the sentence.
        level: How deep it lies.

    Raises:
        ValueError: The sentence names the place; nothing of it is repeated beyond 80 characters.
    """
    if level > DEEPEST:
        raise ValueError(f"{where} is nested deeper than {DEEPEST} levels; write it flatter")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and (names_code(key) or is_expression(key)):
                raise ValueError(f"{where} has the key {key!r:.80}, which names code; only names and numbers are read")
            refuse_code(item, f"{where}.{key!s:.80}", level=level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            refuse_code(item, where, level=level + 1)
    elif isinstance(value, str):
        refuse_expression(value, where)


def refuse_expression(text: str, where: str) -> None:
    """Refuse a text that stands for something else; ValueError as in :func:`refuse_code`."""
    if is_expression(text):
        raise ValueError(f"{where} is the expression {text!r:.80}; only plain values are read")
