"""The parts of a network by name, and which of them are fixed.

A network maps names to the paths of its modules in `parts`, so that a rule, a loss term, a learning rate or a job's
settings name "encoder" and not attributes of one network. The path of a module or a tensor may stand for a part.
Methods name by default:

    encoder   computes features from images
    decoder   computes maps from features
    head      the classifiers, or other last layers
    top       what personalised methods keep at the site: the head, and of several decoders the last
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from torch import nn

from shared_components.common.arguments import require_list

_FIXED = "fixed_paths"  # the attribute that `freeze` sets, so that copies of the network have it, too


def parts_of(network: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Return the parts that a network declares; empty if it declares none."""
    return getattr(network, "parts", {})


def resolve(network: nn.Module, names: Collection[str], what: str = "parts") -> frozenset[str]:
    """Return the paths of the modules that some names mean: parts of the network, or paths of modules or tensors.

    Raises ValueError as :func:`require_list`, and for a name that is no part and no module, or holds no weights;
    ``what`` begins the sentence.
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
    """Return whether a tensor or module is, or lies in, one of the modules at these paths."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def shared_paths(ones: Collection[str], others: Collection[str]) -> list[str]:
    """Return the paths of either that lie in the other, sorted; empty if they have no weight in common."""
    return sorted({p for p in ones if inside(p, others)} | {p for p in others if inside(p, ones)})


def freeze(network: nn.Module, names: Collection[str]) -> None:
    """Fix some parts, ``training.fixed``: their parameters get no gradient, their tensors are FIXED in a partition.

    The network is changed in place; copies of it are fixed, too.
    Raises ValueError for a name that is no part and no module, or names that are no list.
    """
    require_list(names, "training.fixed", "encoder", least=0)
    if not names:
        return
    paths = resolve(network, names, "training.fixed")
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if inside(name, paths):
            parameter.requires_grad_(False)
    setattr(network, _FIXED, getattr(network, _FIXED, frozenset()) | paths)


def fixed_tensors(network: nn.Module) -> frozenset[str]:
    """Return the names of the tensors that neither training nor a federation changes.

    These are the tensors of parts given to :func:`freeze`, parameters without a gradient, and buffers whose nearest
    module with parameters has none with a gradient, such as the running statistics of a frozen layer.
    """
    state = network.state_dict(keep_vars=True)
    named: frozenset[str] = getattr(network, _FIXED, frozenset())
    parameters = {name: t.requires_grad for name, t in state.items() if isinstance(t, nn.Parameter)}
    moving = {place for name, trained in parameters.items() if trained for place in upwards(name)}
    still = {place for name, trained in parameters.items() if not trained for place in upwards(name)}

    def rests(name: str) -> bool:
        if name in parameters:
            return not parameters[name]
        nearest = next((place for place in upwards(name) if place in moving or place in still), None)
        return nearest is not None and nearest not in moving

    return frozenset(name for name in state if inside(name, named) or rests(name))


def trained_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that have a gradient, by name, in the network's order."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def by_learning_rate(network: nn.Module, rates: Mapping[str, float]) -> list[tuple[float | None, list[nn.Parameter]]]:
    """Group the trained parameters by the learning rate of their part, ``training.learning_rates``.

    Returns pairs of a rate and its parameters, in the network's order: first, with None, the parameters of no named
    part, if there are any; then part by part. Raises ValueError for a part that is unknown, lies in another one or
    holds nothing that is trained, and where nothing is trained at all.
    """
    trained, what = trained_parameters(network), "training.learning_rates"
    if not trained:
        raise ValueError("nothing is left to train; name fewer parts in training.fixed")
    taken: dict[str, str] = {}  # by path, the part
    groups: list[tuple[float | None, list[nn.Parameter]]] = []
    for part, rate in rates.items():
        paths = resolve(network, [part], what)
        if both := shared_paths(paths, taken):
            other = next(name for path, name in taken.items() if shared_paths([path], paths))
            raise ValueError(f"{what}: {part} and {other} both hold {both[0]}; give it one rate")
        taken |= dict.fromkeys(paths, part)
        own = [trained.pop(name) for name in list(trained) if inside(name, paths)]
        if not own:
            raise ValueError(f"{what}: {part} holds nothing that is trained; leave it out")
        groups.append((rate, own))
    return [(None, list(trained.values())), *groups] if trained else groups


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
