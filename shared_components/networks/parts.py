"""Named parts of a network, and frozen parts.

A network declares its part names and module paths in `parts`, so that rules, loss terms, learning rates and job
settings do not depend on one network's attributes. The path of a module or tensor can be used instead of a part.
Methods use these names by default:

    encoder   computes features from images
    decoder   computes maps from features
    head      the classifiers, or other last layers
    top       the default personal part of personalised methods: the head and, with several decoders, the last decoder
"""

import difflib
from collections.abc import Collection, Iterator, Mapping

from torch import nn

from shared_components.common.arguments import require_list

_FIXED = "fixed_paths"  # attribute set by `freeze`, which copies of the network keep


def parts_of(network: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Return the declared parts of a network; empty if there are none."""
    return getattr(network, "parts", {})


def resolve(network: nn.Module, names: Collection[str], what: str = "parts") -> frozenset[str]:
    """Return the module paths for names of parts, modules or tensors.

    Raises ValueError, beginning with ``what``, if they are no list, for unknown names, and for names without weights.
    """
    require_list(names, what)
    parts = parts_of(network)
    places = {place for name in network.state_dict() for place in upwards(name)} - {""}
    resolved: set[str] = set()
    for name in names:
        paths = parts.get(name, (name,))
        if not paths or not places.issuperset(paths):
            raise ValueError(_unknown(network, name, places, what))
        resolved.update(paths)
    return frozenset(resolved)


def inside(name: str, paths: Collection[str]) -> bool:
    """Return whether a tensor or module equals, or is inside, one of the modules at these paths."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def shared_paths(ones: Collection[str], others: Collection[str]) -> list[str]:
    """Return the sorted paths that overlap between two collections; empty if they share no weight."""
    return sorted({p for p in ones if inside(p, others)} | {p for p in others if inside(p, ones)})


def freeze(network: nn.Module, names: Collection[str]) -> None:
    """Freeze parts in place (``training.fixed``): no gradient, and FIXED in a partition; ValueError as `resolve`."""
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

    These are tensors of parts given to :func:`freeze`, parameters without a gradient, and buffers whose nearest module
    with parameters is frozen, such as the running statistics of a frozen layer.
    """
    state = network.state_dict(keep_vars=True)
    frozen_parts: frozenset[str] = getattr(network, _FIXED, frozenset())
    parameters = {name: t.requires_grad for name, t in state.items() if isinstance(t, nn.Parameter)}
    modules: dict[str, bool] = {}  # path -> whether a parameter inside is trained
    for name, trained in parameters.items():
        modules |= {path: trained or modules.get(path, False) for path in upwards(name)}

    def is_fixed(name: str) -> bool:
        if name in parameters:
            return not parameters[name]
        return not next((modules[path] for path in upwards(name) if path in modules), True)

    return frozenset(name for name in state if inside(name, frozen_parts) or is_fixed(name))


def trained_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters with a gradient by name, in the network's order."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def by_learning_rate(network: nn.Module, rates: Mapping[str, float]) -> list[tuple[float | None, list[nn.Parameter]]]:
    """Group the trained parameters by the learning rate of their part, ``training.learning_rates``.

    Returns pairs of a rate and its parameters in the network's order: first the parameters of unnamed parts, with None
    as their rate, if there are any; then part by part. Raises ValueError for parts that are unknown, overlap or have no
    trained parameters, and for a network without trained parameters.
    """
    trained, what = trained_parameters(network), "training.learning_rates"
    if not trained:
        raise ValueError("no parameters are left to train; list fewer parts in training.fixed")
    part_of_path: dict[str, str] = {}  # path -> part
    groups: list[tuple[float | None, list[nn.Parameter]]] = []
    for part, rate in rates.items():
        paths = resolve(network, [part], what)
        if both := shared_paths(paths, part_of_path):
            other = next(name for path, name in part_of_path.items() if shared_paths([path], paths))
            raise ValueError(f"{what}: {part} and {other} both contain {both[0]}; give it one rate")
        part_of_path |= dict.fromkeys(paths, part)
        own = [trained.pop(name) for name in list(trained) if inside(name, paths)]
        if not own:
            raise ValueError(f"{what}: {part} has no trained parameters; remove it")
        groups.append((rate, own))
    return [(None, list(trained.values())), *groups] if trained else groups


def upwards(name: str) -> Iterator[str]:
    """Yield the path ``a.b.c``, its parents ``a.b`` and ``a``, and the empty path of the network."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def _unknown(network: nn.Module, name: str, places: Collection[str], what: str) -> str:
    kind, parts = type(network).__name__, parts_of(network)
    if name in parts:
        return f"{what}: {kind} declares part {name!r} as {parts[name]}, which has no weights; correct 'parts'"
    known = list(parts) or sorted({place.partition(".")[0] for place in places})
    close = difflib.get_close_matches(name, [*known, *places], n=1)
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    return f"{what} names {name!r}, which is no part and no module of {kind}; {hint} has {', '.join(known)}"
