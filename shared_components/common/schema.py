"""Check plain values against declared types and ranges; each error is one sentence.

A schema is a `Schema`, a dataclass, or a mapping of names to types. A type has its range in `msgspec.Meta`, and the
error message is derived from this range; ``Meta(description=...)`` replaces the derived words. Give each range both
ends: without an upper end msgspec accepts infinity, and whole numbers of any length.
"""

import functools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from shared_components.common.arguments import range_in_words

T = TypeVar("T", bound="Schema")

MOST_PARTS = 1000  # maximum items of a list or mapping that are searched for the wrong item
SHOWN = 80  # maximum characters of a value or key in an error message


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record that `parse` builds and checks; calling the class directly checks nothing."""


def parse(schema: type[T], given: object, who: str = "", *, error: type[Exception] = ValueError, key: str = "{}") -> T:
    """Build a record from a mapping of plain values; fields without a default are required.

    Args:
        who: Start of the error message: a file, a section, a message.
        error: Exception class to raise if `given` is not a mapping, a key is unknown or missing, or a value is wrong.
        key: Format of a key in the error message: ``privacy.{}``.
    """
    try:
        return msgspec.convert(dict(given) if isinstance(given, Mapping) else given, schema)
    except (msgspec.ValidationError, RecursionError):
        values = check_keys(kinds_of(schema), given, who, required_by(schema), error=error, key=key)
        check_values(kinds_of(schema), values, who, error=error, key=key)
        raise error(f"{_beginning(who)}{short_repr(given)} is no {schema.__name__.lower()}") from None


def check_keys(
    known: Iterable[str],
    given: object,
    who: str = "",
    required: Iterable[str] = (),
    *,
    error: type[Exception] = ValueError,
    key: str = "{}",
) -> Mapping[str, Any]:
    """Return `given` if it is a mapping with all required keys and no unknown key; arguments as in `parse`."""
    where, names = _beginning(who), list(known)
    if not isinstance(given, Mapping):
        what = key.removesuffix(".{}") if key != "{}" else "it"
        raise error(
            f"{where}{what} is {short_repr(given)}; write its settings as 'name: value'; known keys: {', '.join(names)}"
        )
    for name in given:
        if not isinstance(name, str) or name not in names:
            odd, meant = short_repr(key.format(name) if isinstance(name, str) else name), nearest(name, names)
            raise error(f"{where}unknown key {odd}; {meant}known keys: {', '.join(names)}")
    for name in required:
        if name not in given:
            raise error(f"{where}{key.format(name)!r} is missing; add it")
    return given


def check_values(
    kinds: Mapping[str, Any],
    given: Mapping[str, Any],
    who: str = "",
    *,
    error: type[Exception] = ValueError,
    key: str = "{}",
) -> None:
    """Raise `error` with the full path of a value that has the wrong type or range; other keys are not checked."""
    for name, kind in kinds.items():
        if name in given and not fits(given[name], kind):
            _refuse(kind, given[name], who, key.format(name), error)


def fits(value: object, kind: Any) -> bool:
    """Return whether a value has the declared type and range; True and "1" are not numbers."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


@functools.cache
def kinds_of(schema: type) -> Mapping[str, Any]:
    """Return the declared types of a schema's or a dataclass's fields."""
    return MappingProxyType(get_type_hints(schema, include_extras=True))


@functools.cache
def required_by(schema: type) -> tuple[str, ...]:
    """Return the fields that have no default."""
    fields = inspect.type_info(schema).fields  # type: ignore[attr-defined]
    return tuple(field.name for field in fields if field.required)


def words(kind: Any) -> str:
    """Return the expected type and range for an error message: "it is a whole number, at least 1 and at most 9"."""
    if get_origin(kind) is Literal:  # in the declared order
        return f"use one of {', '.join(map(str, get_args(kind)))}"
    return _words(inspect.type_info(kind))


def short_repr(value: object) -> str:
    """Return a short printable text of any value."""
    return _SHORT.repr(value)


def kind_of(value: object) -> str:
    """Return the type of a value in words, without the value."""
    return "None" if value is None else f"a value of type {type(value).__name__[:SHOWN]}"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return "did you mean 'rounds'? " for the most similar known name, or "" if none is similar."""
    close = get_close_matches(name[:SHOWN], known, n=1) if isinstance(name, str) else []
    return f"did you mean {close[0]!r}? " if close else ""


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring = 3, SHOWN

    def repr(self, value: object) -> str:
        text = super().repr(value)
        return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}..."

    def repr_int(self, value: int, level: int) -> str:
        return str(value) if abs(value) < 10**SHOWN else f"a whole number of over {SHOWN} digits"

    def repr_instance(self, value: object, level: int) -> str:
        plain = value is None or isinstance(value, bool | float | complex | bytes)
        return repr(value)[:SHOWN] if plain else kind_of(value)


_SHORT = _Short()


def _beginning(who: str) -> str:
    return f"{who}: " if who else ""


def _refuse(kind: Any, value: object, who: str, place: str, error: type[Exception]) -> None:
    """Raise `error` for the first part of a value that has the wrong type or range."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for one in get_args(bare) if get_origin(bare) in (Union, UnionType) else [bare]:
        if isinstance(one, type) and issubclass(one, Schema):
            parse(one, value, who, error=error, key=f"{place}.{{}}")
        for path, part, wanted in islice(_parts(one, value, place), MOST_PARTS):
            if not fits(part, wanted):
                _refuse(wanted, part, who, path, error)
    raise error(f"{_beginning(who)}{place} is {short_repr(value)}; {words(kind)}")


def _parts(kind: Any, value: object, place: str) -> Iterator[tuple[str, object, Any]]:
    """Yield path, value and declared type of each item of a mapping or list."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        yield from ((f"{place}.{short_repr(name)[1:-1]}", item, arguments[1]) for name, item in value.items())
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        yield from ((f"{place}[{number}]", item, arguments[0]) for number, item in enumerate(value, 1))


def _words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return (kind.extra_json_schema or {}).get("description") or _words(kind.type)
    if isinstance(kind, inspect.UnionType):
        others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return _words(others[0]) + ", or null" * (len(others) < len(kind.types))
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        low, high = (kind.gt if kind.ge is None else kind.ge), (kind.lt if kind.le is None else kind.le)
        ends = ("(" if kind.ge is None else "[") + (")" if kind.le is None else "]")
        whole = "whole " * isinstance(kind, inspect.IntType)
        return f"it is a {whole}number, {range_in_words(cast(float, low), cast(float, high), ends)}"
    if isinstance(kind, inspect.StrType):
        return "it is a text" + (f" of at most {kind.max_length} letters" if kind.max_length else "")
    if isinstance(kind, inspect.DictType):
        return "write its settings as 'name: value'"
    return "it is true or false" if isinstance(kind, inspect.BoolType) else "it is of another form"
