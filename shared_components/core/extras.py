"""What a site sends besides its weights: groups of tensors, each with the check of site and server, and its shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from shared_components.core.partition import Pieces

CheckExtra = Callable[[Pieces, Pieces], None]  # (the group's tensors, the shared pieces); raises ValueError
Shapes = Callable[[Pieces, Pieces], Mapping[str, tuple[int, ...]]]  # (the shared pieces, the network's state)


@dataclass(frozen=True)
class Extra:
    """A group that a method declares.

    Attributes:
        check: Refuses tensors that the group does not have.
        shapes: What it will hold, before anything is measured.
    """

    check: CheckExtra
    shapes: Shapes

    def __call__(self, group: Pieces, shared: Pieces) -> None:
        """Check a group; ValueError where it is another."""
        self.check(group, shared)


def like_shared(group: Pieces, shared: Pieces) -> None:
    """Accept a group that has one tensor of the same shape for every shared piece.

    Raises:
        ValueError: A name is missing or undeclared, or a shape differs; both say the first such name.
    """
    if odd := sorted(set(group) ^ set(shared)):
        raise ValueError(f"{odd[0]} is {'missing' if odd[0] in shared else 'no shared piece'}")
    for name, value in group.items():
        if value.shape != shared[name].shape:
            raise ValueError(f"{name} is {tuple(value.shape)}; its piece is {tuple(shared[name].shape)}")


def shapes_of_shared(shared: Pieces, state: Pieces) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `like_shared` accepts."""
    return {name: tuple(value.shape) for name, value in shared.items()}


def _one_number(group: Pieces, shared: Pieces) -> None:
    """Raise ValueError unless a group is one number, ``{"value": ()}``, finite and not negative."""
    if set(group) != {"value"} or group["value"].shape != ():
        raise ValueError(
            f"it holds {sorted(group)}; it should be one number named 'value', a tensor without dimensions"
        )
    if group["value"].is_meta:
        return
    if not bool(torch.isfinite(group["value"])) or bool(group["value"] < 0):
        raise ValueError(f"its value is {float(group['value'])}; it should be finite and not negative")


scalar = Extra(_one_number, lambda shared, state: {"value": ()})
"""One number, finite and not negative."""
