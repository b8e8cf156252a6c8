"""Validate network arguments from a job or a checkpoint's header: only plain values, by name.

Neither source is trusted: a job comes from a server, a checkpoint from anybody. An argument reaches the constructor
only if the signature has this name with this type; the constructor checks the range. An entry ``class`` selects another
network, see `network_class`.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta
from torch import nn

from shared_components.common.plain_values import check_amount
from shared_components.common.reject_code import is_expression, refuse_code
from shared_components.common.schema import fits, nearest, short_repr
from shared_components.networks.adapter import channels_argument, definition_of
from shared_components.networks.network_class import is_ours, network_class

Plain = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)] | str | bool | None
DECIDED = "out_channels"  # set by the site's task or a checkpoint's last layer
WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


def chosen_definition(arguments: object, definition: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a bundle's `network_def` with the chosen arguments, and these arguments.

    The arguments belong to the bundle's network, or to the class with the path ``class``. ValueError as
    `network_class` and `chosen_arguments`.
    """
    if not isinstance(arguments, Mapping) or "class" not in arguments:
        chosen = chosen_arguments(arguments, network_class(definition))
        return {**definition, **chosen}, chosen
    own = {"_target_": arguments["class"]}
    chosen = {name: value for name, value in arguments.items() if name != "class"}
    return {**own, **chosen_arguments(chosen, network_class(own))}, dict(arguments)


def chosen_arguments(arguments: object, network: type[nn.Module]) -> dict[str, Any]:
    """Return the arguments after checking names and types against the constructor's annotations.

    Values are strings, finite numbers, booleans, null, and lists of these. Networks of other libraries also take nested
    values, such as ``[group, {num_groups: 4}]``. ValueError names the first invalid argument.
    """
    if not isinstance(arguments, Mapping):
        raise ValueError(
            f"network: the value is {short_repr(arguments)}; write arguments of {network.__name__} as 'name: value'"
        )
    kinds = _hints(network)
    for name, value in arguments.items():
        _check_name(name, network)
        check_amount(f"network: {name}", value)
        _check_plain(name, value, nested=not is_ours(network))
        kind = kinds.get(name)
        if not _fits(value, kind):
            raise ValueError(f"network: {name} is {short_repr(value)}; it is {_words(kind)}")
    return dict(arguments)


def differing(network: nn.Module, own: nn.Module) -> dict[str, Any]:
    """Return, as plain values, the constructor arguments in which a network differs from another of its class.

    They are keywords of `remade`; the result is empty without `remade` or for two classes. For another library's
    network it is the whole definition, including ``class``.
    """
    if definition := definition_of(network):
        return definition
    if type(network) is not type(own) or not hasattr(network, "remade"):
        return {}
    chosen, others = (
        {name: list(value) if isinstance(value, tuple) else value for name, value in module.remade.keywords.items()}
        for module in (network, own)
        if isinstance(module.remade, partial)
    )
    return {name: value for name, value in chosen.items() if others.get(name) != value}


def arguments_of(network: type[nn.Module]) -> list[str]:
    """Return the names of the constructor's arguments, except the number of outputs."""
    parameters = inspect.signature(network.__init__).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [name for name in names if name not in ("self", _decided(network))]


def _decided(network: type[nn.Module]) -> str:
    return DECIDED if is_ours(network) else channels_argument(network)


def _hints(network: type[nn.Module]) -> Mapping[str, Any]:
    """Return the types of a constructor's arguments; empty if another library's annotations cannot be resolved."""
    try:
        return get_type_hints(network.__init__)
    except (NameError, TypeError):
        if is_ours(network):
            raise
        return {}


def _check_name(name: object, network: type[nn.Module]) -> None:
    known = arguments_of(network)
    if name in known:
        return
    takes = f"{network.__name__} takes {', '.join(known)}"
    if name == _decided(network):
        raise ValueError(f"network: {name} is set by the site's task and its classes; remove it")
    if not isinstance(name, str) or name.startswith("_"):
        raise ValueError(f"network: {short_repr(name)} is set by the bundle and cannot be chosen; {takes}")
    raise ValueError(f"network: unknown argument {short_repr(name)}; {nearest(name, known)}{takes}")


def _check_plain(name: str, value: object, *, nested: bool) -> None:
    if nested:
        refuse_code(value, f"network: {name}")  # which also limits the depth
    for item in _leaves(value) if nested else value if isinstance(value, list) else [value]:
        if isinstance(item, str) and is_expression(item):
            raise ValueError(f"network: {name} is the expression {short_repr(item)}; write a plain value")
        if not fits(item, Plain):
            raise ValueError(
                f"network: {name} is {short_repr(value)}; write a text, a finite number, true, false, null, "
                "or a list of these"
            )


def _leaves(value: object) -> Iterator[object]:
    """Yield the keys and values of nested lists and mappings."""
    if isinstance(value, Mapping):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _fits(value: object, kind: Any) -> bool:
    """Return whether a plain value has an annotated type; True for types that are not in ``WORDS``."""
    if isinstance(kind, UnionType):
        return any(value is None if part is NoneType else _fits(value, part) for part in get_args(kind))
    if get_origin(kind) is Sequence:
        return isinstance(value, list) and all(_fits(item, get_args(kind)[0]) for item in value)
    return kind not in WORDS or fits(value, kind)


def _words(kind: Any) -> str:
    if isinstance(kind, UnionType):
        return " or ".join("null" if part is NoneType else _words(part) for part in get_args(kind))
    if get_origin(kind) is Sequence:
        return f"a list, of which each is {_words(get_args(kind)[0])}"
    return WORDS[kind]
