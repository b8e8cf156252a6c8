"""Partition rules that several methods share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from shared_components.arguments import require_list
from shared_components.partition import Role, Rule, Slice, TensorRule
from shared_components.parts import inside as lies_inside
from shared_components.parts import resolve

HEAD = ("top",)
"""What methods that keep a head at home keep by default; every network says which of its modules that is."""


def modules(
    names: Sequence[str],
    *,
    what: str = "modules",
    inside: Role = Role.LOCAL,
    outside: Role = Role.GLOBAL,
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
