"""Reject code in configs: the texts and keys that MONAI and FLARE execute.

A job, a message or a checkpoint's header holds names and numbers. MONAI evaluates texts that begin with ``$``, resolves
``@`` and ``%``, imports what ``_target_`` names and evaluates a ``logging_file``; FLARE builds what ``path`` names and
passes every text to `str.format` with the environment's variables: ``{$NAME}``, ``{SITE_NAME:>100}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPRESSIONS = ("$", "@", "%")
"""Prefixes of an expression, a reference and a macro in MONAI's configs."""
KEYS = frozenset({"class_attributes", "class_path", "config_type", "imports", "logging_file", "path"})
"""Keys that name code, beside MONAI's keys between underscores: ``_target_``, ``_requires_``."""
DEEPEST = 32


def is_expression(text: str) -> bool:
    """Return whether MONAI or FLARE would evaluate a text."""
    return text.lstrip().startswith(EXPRESSIONS) or "{$" in text or "${" in text


def names_code(key: str) -> bool:
    """Return whether a key of a config names code."""
    return key in KEYS or (key.startswith("_") and key.endswith("_"))


def refuse_code(value: Any, where: str, *, level: int = 1) -> None:
    """Refuse mappings, lists and texts that contain an expression or a key that names code, at any depth.

    Raises:
        ValueError: The sentence begins with `where` and repeats at most 80 characters of the value.
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
    """Refuse an expression and a text with braces, which FLARE substitutes; ValueError as in :func:`refuse_code`."""
    if is_expression(text) or set(text) & {"{", "}"}:
        raise ValueError(f"{where} is the expression {text!r:.80}; only plain values are read")
