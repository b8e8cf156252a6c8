"""Which arguments of a bundle's network a job, or a checkpoint's header, may choose: plain values, by name.

Neither is trusted: a job comes from a server, a checkpoint from anybody. What they say reaches a constructor only
where its signature has that name and a value of that kind; the constructor itself refuses what is out of range.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from torch import nn

from shared_components.common.reject_code import is_expression

DECIDED = "out_channels"  # by a site's task or by a checkpoint's last layer
WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


def chosen_arguments(given: object, network: type[nn.Module]) -> dict[str, Any]:
    """Return the arguments that are given, checked against a network's constructor.

    Args:
        given: By name; texts, finite numbers, truth values, null, and lists of these.
        network: The class; its constructor has annotations.

    Raises:
        ValueError: They are no mapping, or one of them cannot be chosen; the sentence names it.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"network: it is {given!r:.80}; write arguments of {network.__name__} as 'name: value'")
    for name, value in given.items():
        _check_name(name, network)
        _check_plain(name, value)
        kind = get_type_hints(network.__init__).get(name)
        if not _fits(value, kind):
            raise ValueError(f"network: {name} is {value!r:.80}; it is {_words(kind)}")
    return dict(given)


def differing(network: nn.Module, own: nn.Module) -> dict[str, Any]:
    """Return, as plain values, the arguments that a network was made with and another one of its class was not.

    Args:
        network, own: what they were made with is the keywords of `remade`; nothing differs where they have none, or
            are of two classes.
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
        raise ValueError(f"network: {name!r:.80} is the bundle's own and cannot be chosen; {takes}")
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"network: unknown argument {name!r:.80}; {meant}{takes}")


def _check_plain(name: str, value: object) -> None:
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, str) and is_expression(item):
            raise ValueError(f"network: {name} is the expression {item!r:.80}; write a plain value")
        if not (item is None or isinstance(item, (str, bool)) or _is_finite(item)):
            raise ValueError(
                f"network: {name} is {value!r:.80}; write a text, a finite number, true, false, null, or a list of "
                "these"
            )


def _is_finite(value: object) -> bool:
    """Say whether a value is a number that a float can hold, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


def _fits(value: object, kind: Any) -> bool:
    """Say whether a plain value is of an annotated kind; of one that is not in ``WORDS``, it is."""
    if kind is float:
        return _is_finite(value)
    if kind in WORDS:
        return type(value) is kind
    if get_origin(kind) is Sequence:
        return isinstance(value, list) and all(_fits(item, get_args(kind)[0]) for item in value)
    return True


def _words(kind: Any) -> str:
    if get_origin(kind) is Sequence:
        return f"a list, of which each is {_words(get_args(kind)[0])}"
    return WORDS[kind]
