"""Check the arguments of a bundle's network that a job, or a checkpoint's header, chooses: plain values, by name.

Neither is trusted: a job comes from a server, a checkpoint from anybody. What they say reaches a constructor only
where its signature has that name and a value of that kind; the constructor itself refuses what is out of range.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta
from torch import nn

from shared_components.common.reject_code import is_expression
from shared_components.common.schema import fits, nearest, shown

Plain = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)] | str | bool | None
DECIDED = "out_channels"  # given by a site's task or by a checkpoint's last layer
WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


def chosen_arguments(given: object, network: type[nn.Module]) -> dict[str, Any]:
    """Return the given arguments, checked by name and kind against the annotations of a network's constructor.

    They are texts, finite numbers, truth values, null, and lists of these; ValueError names one that cannot be chosen.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"network: it is {shown(given)}; write arguments of {network.__name__} as 'name: value'")
    for name, value in given.items():
        _check_name(name, network)
        _check_plain(name, value)
        kind = get_type_hints(network.__init__).get(name)
        if not _fits(value, kind):
            raise ValueError(f"network: {name} is {shown(value)}; it is {_words(kind)}")
    return dict(given)


def differing(network: nn.Module, own: nn.Module) -> dict[str, Any]:
    """Return, as plain values, the arguments that a network was made with and another one of its class was not.

    They are the keywords of `remade`; nothing differs where the two have none, or are of two classes.
    """
    if type(network) is not type(own):
        return {}
    given, others = (_plain(getattr(one, "remade", None)) for one in (network, own))
    return {name: value for name, value in given.items() if others.get(name) != value}


def _plain(remade: partial[nn.Module] | None) -> dict[str, Any]:
    keywords = remade.keywords if remade is not None else {}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in keywords.items()}


def arguments_of(network: type[nn.Module]) -> list[str]:
    """Return the names that may be chosen: all that the constructor takes, but for the number of outputs."""
    parameters = inspect.signature(network.__init__).parameters.values()
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [name for name in names if name not in ("self", DECIDED)]


def _check_name(name: object, network: type[nn.Module]) -> None:
    known = arguments_of(network)
    if name in known:
        return
    takes = f"{network.__name__} takes {', '.join(known)}"
    if name == DECIDED:
        raise ValueError(f"network: {DECIDED} is decided by the site's task and its classes; leave it out")
    if not isinstance(name, str) or name.startswith("_"):
        raise ValueError(f"network: {shown(name)} is the bundle's own and cannot be chosen; {takes}")
    raise ValueError(f"network: unknown argument {shown(name)}; {nearest(name, known)}{takes}")


def _check_plain(name: str, value: object) -> None:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and is_expression(item):
            raise ValueError(f"network: {name} is the expression {shown(item)}; write a plain value")
        if not fits(item, Plain):
            raise ValueError(
                f"network: {name} is {shown(value)}; write a text, a finite number, true, false, null, or a list of "
                "these"
            )


def _fits(value: object, kind: Any) -> bool:
    """Say whether a plain value is of an annotated kind; of one that is not in ``WORDS``, it is."""
    if isinstance(kind, UnionType):
        return any(value is None if one is NoneType else _fits(value, one) for one in get_args(kind))
    if get_origin(kind) is Sequence:
        return isinstance(value, list) and all(_fits(item, get_args(kind)[0]) for item in value)
    return kind not in WORDS or fits(value, kind)


def _words(kind: Any) -> str:
    if isinstance(kind, UnionType):
        return " or ".join("null" if one is NoneType else _words(one) for one in get_args(kind))
    if get_origin(kind) is Sequence:
        return f"a list, of which each is {_words(get_args(kind)[0])}"
    return WORDS[kind]
