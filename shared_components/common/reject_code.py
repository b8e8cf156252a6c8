"""Reject code in configs: texts and keys that MONAI or FLARE execute.

A job, a message or a checkpoint's header may contain only names and numbers.

- MONAI evaluates texts that begin with ``$``, resolves ``@`` and ``%``, imports the class in ``_target_`` and evaluates
  a ``logging_file``.
- FLARE builds the class in ``path`` and passes every text to `str.format` with the environment's variables:
  ``{$NAME}``, ``{SITE_NAME:>100}``.
"""

from collections.abc import Mapping
from typing import Any

EXPRESSIONS = ("$", "@", "%")
"""Prefixes of MONAI's expressions, references and macros."""
KEYS = frozenset({"class_attributes", "class_path", "config_type", "imports", "logging_file", "path"})
"""Keys that name code, in addition to MONAI's keys between underscores: ``_target_``, ``_requires_``."""
DEEPEST = 32
"""Maximum depth of nested lists and mappings."""


def is_expression(text: str) -> bool:
    """Return whether MONAI or FLARE would evaluate a text."""
    return text.lstrip().startswith(EXPRESSIONS) or "{$" in text or "${" in text


def names_code(key: str) -> bool:
    """Return whether a key of a config names code."""
    return key in KEYS or (key.startswith("_") and key.endswith("_"))


def refuse_code(value: Any, where: str, *, level: int = 1) -> None:
    """Refuse mappings, lists and texts that contain an expression or a key that names code, at any depth.

    The message of the ValueError begins with `where` and quotes at most 80 characters.
    """
    if level > DEEPEST:
        raise ValueError(f"{where} is nested deeper than {DEEPEST} levels; write it flatter")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and (names_code(key) or is_expression(key)):
                raise ValueError(f"{where} has the key {key!r:.80}, which names code; remove it")
            refuse_code(item, f"{where}.{key!s:.80}", level=level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            refuse_code(item, where, level=level + 1)
    elif isinstance(value, str):
        refuse_expression(value, where)


def refuse_expression(text: str, where: str) -> None:
    """Raise ValueError for an expression, and for a text with braces, which FLARE substitutes."""
    if is_expression(text) or set(text) & {"{", "}"}:
        raise ValueError(f"{where} is the expression {text!r:.80}; write a plain value")
