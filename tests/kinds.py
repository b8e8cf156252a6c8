"""Which methods run the same code in a federation, so that a test of whole federations takes one of each kind."""

from collections.abc import Iterable
from typing import Any

from shared_components.core.method import StatelessStart, load_method
from shared_components.core.partition import partition_network
from shared_components.networks.tiny import Tiny
from tests.federation.conftest import NOT_TINY


def one_of_each_kind(names: Iterable[str]) -> list[str]:
    """Return the first method of each kind, fedavg for its own; one that asks more of a network than `Tiny` is a kind.

    Methods of a kind differ in the objective or in an aggregator without state at most: code that sees one step or one
    round, which `tests/methods` run for every method. What they send and keep, and the code that keeps it, is the same.
    """
    found: dict[tuple, str] = {}
    for name in sorted(names, key=lambda name: (name != "fedavg", name)):
        found.setdefault(_kind(name), name)
    return sorted(found.values())


def _kind(name: str) -> tuple:
    method = load_method(name)
    local, server, requires = method.local, method.server, method.requires
    if name in NOT_TINY:
        return (name,)
    state = None if isinstance(server.aggregator, StatelessStart) else _code(server.aggregator)
    at_site = (local.update, local.gradients, local.measure, local.condition_on_site, local.deploy)
    code = (*map(_code, at_site), *map(_code, (server.update, server.finish)))
    roles = frozenset(partition_network(Tiny(), method.partition).roles)
    return (state, *code, roles, requires.pooled, requires.multi_task, *sorted(local.items))


def _code(value: Any) -> str:
    """Name the function, or the class of a callable object or aggregator; a wrapper also names what it wraps."""
    if value is None:
        return ""
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    wrapped = [_code(inner) for inner in vars(value).values() if callable(inner)]
    return " ".join([f"{type(value).__module__}.{type(value).__qualname__}", *wrapped])
