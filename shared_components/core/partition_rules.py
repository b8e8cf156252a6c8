"""Define partition rules that several methods share."""

from collections.abc import Sequence

from torch import Tensor, nn

from shared_components.core.partition import Role, Rule, Slice, TensorRule, everything
from shared_components.networks.parts import inside as lies_inside
from shared_components.networks.parts import parts_of, resolve

HEAD = ("top",)  # default LOCAL part of methods with a personal head; every network declares it
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
"""Names for `personal` in `representation`, with the parts of the network that they mean."""
HALVES = ("keys", "values")  # order of the rows of keys_values


def modules(
    names: Sequence[str], *, what: str = "modules", inside: Role = Role.LOCAL, outside: Role = Role.GLOBAL
) -> Rule:
    """Return a rule that assigns the role ``inside`` to some parts or modules, and ``outside`` to all other tensors.

    ``what`` is method and argument for errors, such as ``fedper: personal``. The rule raises ValueError for unknown
    names.
    """

    def rule(network: nn.Module) -> TensorRule:
        paths = resolve(network, names, what)

        def slices(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
            return (Slice(inside if lies_inside(name, paths) else outside),)

        return slices

    return rule


def all_but(personal: Sequence[str], *, what: str, role: Role = Role.GLOBAL) -> Rule:
    """Return a rule that assigns one role to the network, except some LOCAL parts; arguments as in `modules`."""
    return modules(personal, what=what, outside=role) if personal else everything(role)


def representation(
    personal: Sequence[str] = ("queries",), *, selection: bool = True, what: str = "fedst: personal"
) -> Rule:
    """Return FedST's rule: a part of the representation is LOCAL, Eq. (5), the rest is averaged, Eq. (6).

    The network's ``indicator``, the text of the site, is always LOCAL.

    Values of ``personal`` (an empty list makes everything GLOBAL except ``selection``):

        queries                        of the encoder (Table 6); this is FedST
        norms, keys, values            of the encoder (Table 6)
        decoder                        with the classifiers (Table 5)
        decoder_queries                of the temporal layer (Table 5); the paper's decoder has attention, ours has none
        temporal                       the whole temporal layer (ours)
        all                            every tensor
        other names                    parts or modules of the network

    ``selection`` keeps the network that selects channels by the text LOCAL ("a personalized lightweight network",
    Section 3.2.2), if there is one. Raises ValueError as `modules`.
    """
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
    declared = parts_of(network)
    if name in REPRESENTATIONS:
        if missing := [part for part in REPRESENTATIONS[name] if part not in declared]:
            raise ValueError(
                f"{what} names {name!r}, but {type(network).__name__} has no part {missing[0]!r}; its parts are "
                f"{', '.join(declared) or 'none'}"
            )
        return resolve(network, REPRESENTATIONS[name], what) if REPRESENTATIONS[name] else frozenset()
    try:
        return resolve(network, [name], what)
    except ValueError as error:
        raise ValueError(f"{error}; {what} also takes {', '.join(REPRESENTATIONS)}") from None
