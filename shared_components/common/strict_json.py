"""Parse strict JSON: without NaN, Infinity and repeated keys, which Python's parser accepts."""

import json
from typing import Any, NoReturn


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse one JSON object; ValueError if it is another value, repeats a key, or contains NaN or Infinity."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is a JSON {type(value).__name__}, not an object with names and values")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has the key {next(name for name in names if names.count(name) > 1)!r:.80} twice")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}, which is not a JSON number")
