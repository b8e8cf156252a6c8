"""Partition rules that several methods share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from shared_components.partition import Role, Rule, Slice

HEAD = ("decoder_personal", "head_personal", "head_global")
"""The head of `pvt_fpn` for methods that keep one at home: the last decoder and the classifiers."""


def modules(names: Sequence[str], *, inside: Role = Role.LOCAL, outside: Role = Role.GLOBAL) -> Rule:
    """Return the rule that gives some top-level modules one role and the rest another.

    Args:
        names: Top-level modules of the network.
        inside: The role of their tensors.
        outside: The role of all other tensors.

    Raises:
        ValueError: No module is named, so that the rule would do nothing.
    """
    if not names:
        raise ValueError("no module is named that should differ; name at least one, such as 'head_global'")
    chosen = frozenset(names)

    def rule(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
        return (Slice(inside if name.partition(".")[0] in chosen else outside),)

    return rule
