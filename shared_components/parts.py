"""The parts of a network by name.

A network says `parts`, from names to the paths of its modules, so that a rule, a loss term, a learning rate or a
job's settings name "encoder" and not attributes of one network. Wherever a part is named, the path of a module (or
of a tensor) will do. What methods name by default:

    encoder   what computes features from images
    decoder   what turns features into maps
    head      the classifiers, or whatever gives the last layer's outputs
    top       what personalised methods keep at home: the head, and of several decoders the last
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from torch import nn

from shared_components.arguments import require_list


def parts_of(network: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Return what a network declares as its parts; nothing where it declares none."""
    return getattr(network, "parts", {})


def resolve(network: nn.Module, names: Collection[str], what: str = "parts") -> frozenset[str]:
    """Return the paths of the modules that some names mean.

    Args:
        network: The network that they are of.
        names: Parts that the network declares, or paths of its modules or tensors.
        what: Begins the sentence of a refusal.

    Raises:
        ValueError: See :func:`require_list`; or a name is no part and no module, or holds no weights.
    """
    require_list(names, what)
    parts = parts_of(network)
    places = {place for name in network.state_dict() for place in upwards(name)} - {""}
    found: set[str] = set()
    for name in names:
        paths = parts.get(name, (name,))
        if not paths or not places.issuperset(paths):
            raise ValueError(_unknown(network, name, places, what))
        found.update(paths)
    return frozenset(found)


def inside(name: str, paths: Collection[str]) -> bool:
    """Say whether a tensor or module is, or lies in, one of the modules at these paths."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def shared_paths(ones: Collection[str], others: Collection[str]) -> list[str]:
    """Return the paths of either that lie in the other, sorted; empty where they have no weight in common."""
    return sorted({p for p in ones if inside(p, others)} | {p for p in others if inside(p, ones)})


def upwards(name: str) -> Iterator[str]:
    """Yield ``a.b.c`` itself, ``a.b``, ``a`` and the empty path of the network."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def _unknown(network: nn.Module, name: str, places: Collection[str], what: str) -> str:
    kind, parts = type(network).__name__, parts_of(network)
    if name in parts:
        return f"{what}: {kind} declares part {name!r} as {parts[name]}, where it holds no weights"
    known = list(parts) or sorted({place.partition(".")[0] for place in places})
    close = difflib.get_close_matches(name, [*known, *places], n=1)
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    return f"{what} names {name!r}, which is no part and no module of {kind}; {hint} has {', '.join(known)}"
