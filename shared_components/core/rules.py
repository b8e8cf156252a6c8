"""Partition rules that several methods share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from shared_components.common.arguments import require_list, true_or_false
from shared_components.core.partition import Role, Rule, Slice, TensorRule, everything
from shared_components.networks.parts import inside as lies_inside
from shared_components.networks.parts import parts_of, resolve

HEAD = ("top",)  # the part that is LOCAL by default in methods with a personal head; every network declares it
REPRESENTATIONS: dict[str, tuple[str, ...]] = {
    "queries": ("queries",),
    "norms": ("norms",),
    "keys": ("keys_values",),
    "values": ("keys_values",),
    "decoder_queries": ("temporal_queries",),
    "decoder": ("decoder", "head"),
    "temporal": ("temporal",),
    "all": (),
}
"""What may be personal in `representation`, and the network's parts that hold it."""
HALVES = ("keys", "values")  # the rows of keys_values, in their order


def modules(
    names: Sequence[str], *, what: str = "modules", inside: Role = Role.LOCAL, outside: Role = Role.GLOBAL
) -> Rule:
    """Return the rule that gives some parts one role and the rest of the network another.

    Args:
        names: Parts of the network, or paths of its modules.
        what: Which argument the names are, such as ``fedper: personal``; begins the sentence of a refusal.
        inside: The role of their tensors.
        outside: The role of all other tensors.

    Raises:
        ValueError: The names are no list, or none; the rule itself refuses names that match nothing.
    """
    require_list(names, what)

    def rule(network: nn.Module) -> TensorRule:
        paths = resolve(network, names, what)

        def slices(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
            return (Slice(inside if lies_inside(name, paths) else outside),)

        return slices

    return rule


def all_but(personal: Sequence[str], *, what: str, role: Role = Role.GLOBAL) -> Rule:
    """Return the rule that gives all of a network one role but for some parts, which are LOCAL; arguments as above."""
    require_list(personal, what, least=0)
    return modules(personal, what=what, outside=role) if personal else everything(role)


def representation(
    personal: Sequence[str] = ("queries",), *, selection: bool = True, what: str = "fedst: personal"
) -> Rule:
    """Return FedST's rule: a part of the representation stays at home, Eq. (5), the rest is averaged, Eq. (6).

    The network's ``indicator``, which is its site's text, is LOCAL in any case.

    Args:
        personal: What is LOCAL, all else is GLOBAL; none: everything GLOBAL but for ``selection``. Of the encoder
            (Table 6) ``queries``, which is FedST, ``norms``, ``keys``, ``values``. Of what comes after it (Table 5)
            ``decoder``, classifiers included, and ``decoder_queries``: the paper's decoder has attention, ours has
            none, and the temporal layer's queries are taken. Ours: ``temporal``, that whole layer. ``all``: every
            tensor. Other parts or modules of the network will do, too.
        selection: Whether the network that selects channels by the text is LOCAL ("a personalized lightweight
            network", Section 3.2.2); where a network has none, it says nothing.
        what: Which argument ``personal`` is; begins the sentence of a refusal.

    Raises:
        ValueError: ``personal`` is no list, or ``selection`` no truth value; the rule itself refuses names that match
            nothing.
    """
    require_list(personal, what, "queries", least=0)
    true_or_false(what.partition(":")[0], "selection", selection)
    halves = [half in personal for half in HALVES]

    def rule(network: nn.Module) -> TensorRule:
        parts = parts_of(network)
        paths_of = {name: _of_representation(network, name, what) for name in personal}
        whole = {path for name, paths in paths_of.items() if name not in HALVES for path in paths}
        whole.update(parts.get("indicator", ()), parts.get("selection", ()) if selection else ())
        halved = frozenset(parts.get("keys_values", ())) if any(halves) else frozenset()

        def slices(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
            if "all" in personal or lies_inside(name, whole):
                return (Slice(Role.LOCAL),)
            if not lies_inside(name, halved):
                return (Slice(Role.GLOBAL),)
            if all(halves):
                return (Slice(Role.LOCAL),)
            first, second = (Role.LOCAL if half else Role.GLOBAL for half in halves)
            rows = tensor.shape[0]  # rows are [K, V], each half of them
            return (Slice(first, 0, rows // 2), Slice(second, rows // 2, rows))

        return slices

    return rule


def _of_representation(network: nn.Module, name: str, what: str) -> frozenset[str]:
    """Return the paths of the modules that hold what a name of ``personal`` means.

    Raises:
        ValueError: The network has no such part or module.
    """
    declared = parts_of(network)
    if name in REPRESENTATIONS:
        if missing := [part for part in REPRESENTATIONS[name] if part not in declared]:
            raise ValueError(
                f"{what} names {name!r}, and {type(network).__name__} declares no part {missing[0]!r}; it has "
                f"{', '.join(declared) or 'none'}"
            )
        return resolve(network, REPRESENTATIONS[name], what) if REPRESENTATIONS[name] else frozenset()
    try:
        return resolve(network, [name], what)
    except ValueError as error:
        raise ValueError(f"{error}; besides, {what} takes {', '.join(REPRESENTATIONS)}") from None
