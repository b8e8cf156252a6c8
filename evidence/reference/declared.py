"""Read names, types, ranges, defaults and sentences from declarations, and write them as Markdown."""

import dataclasses
import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from shared_components.common.schema import kinds_of

SIMPLE = {
    int: "whole number", float: "number", bool: "true or false", str: "text", Any: "", dict: "mapping",
    list: "list", Mapping: "mapping",
}  # fmt: skip
SECTION = re.compile(r"^ *(?:Args|Attributes):\n(.*?)(?=^\S|^ {0,4}\w+:\n|\Z)", re.MULTILINE | re.DOTALL)
HEAD = ("Key", "Meaning", "Default", "Value")
ENTRY = re.compile(r"^(\w[\w, ]*): (.*(?:\n +.*)*)", re.MULTILINE)


def sentences(thing: Any) -> dict[str, str]:
    """Return the sentence of each argument or attribute in a docstring of Google's style."""
    text = inspect.getdoc(thing) or ""
    found = SECTION.search(text)
    if not found:
        return {}
    entries = {names: " ".join(words.split()) for names, words in ENTRY.findall(textwrap.dedent(found[1]))}
    return {name.strip(): as_code(words) for names, words in entries.items() for name in names.split(",")}


def as_code(text: str) -> str:
    """Write the double backticks of docstrings as Markdown."""
    return text.replace("``", "`")


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring."""
    return as_code(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()))


def kind_words(kind: Any) -> str:
    """Write a declared type and its range in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        ranges = [text for meta in parts[1:] if isinstance(meta, msgspec.Meta) and (text := _range(meta))]
        return ", ".join([kind_words(parts[0]), *ranges])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin is Union or type(kind).__name__ == "UnionType":
        return " or ".join(kind_words(part) for part in parts if part is not type(None))
    if origin is tuple or origin is list:
        return f"list: {kind_words(parts[0])}" if parts and parts[0] is not Any else "list"
    if isinstance(origin or kind, type) and issubclass(origin or kind, msgspec.Struct):
        return "section"
    return SIMPLE.get(origin or kind, "mapping")


def _range(meta: msgspec.Meta) -> str:
    least = meta.ge if meta.ge is not None else meta.gt
    most = meta.le if meta.le is not None else meta.lt
    if least is None or most is None:
        return ""
    above = "above " if meta.ge is None else ""
    below = "below " if meta.le is None else ""
    return f"{above}{_number(least)} to {below}{_number(most)}"


def _number(value: float) -> str:
    if isinstance(value, int) and value >= 2**31 and value & (value + 1) == 0:
        return f"2^{value.bit_length()} - 1"
    if value >= 10**9:
        return f"10^{round(math.log10(value))}"
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def default_words(value: Any) -> str:
    """Write a default as it would stand in a file."""
    if value is dataclasses.MISSING or value is msgspec.NODEFAULT or value is inspect.Parameter.empty:
        return "required"
    if value is None or value in ("", {}, (), []) or (isinstance(value, float) and math.isinf(value)):
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def fields_of(schema: type) -> Iterable[tuple[str, Any]]:
    """Yield the name and the default of each field of a dataclass or a struct."""
    if dataclasses.is_dataclass(schema):
        for field in dataclasses.fields(schema):
            made = field.default_factory is not dataclasses.MISSING
            yield field.name, field.default_factory() if made else field.default  # type: ignore[misc]
    else:
        for field in msgspec.structs.fields(schema):
            yield field.name, field.default


def schema_table(schema: type, *, leave_out: Sequence[str] = (), sections: Sequence[str] = ()) -> str:
    """Tabulate a schema; names in ``sections`` become links; KeyError for a field whose docstring has no sentence."""
    kinds, said = kinds_of(schema), sentences(schema)
    rows = [
        (
            f"[`{name}`](#{name})" if name in sections else f"`{name}`",
            said[name],
            default_words(default),
            kind_words(kinds[name]),
        )
        for name, default in fields_of(schema)
        if name not in leave_out
    ]
    return table(HEAD, rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def without_last_bars(page: str) -> str:
    """Return a page without the last bar of each row of its tables, for long tables."""
    return re.sub(r"^(\|.*) \|$", r"\1", page, flags=re.MULTILINE)
