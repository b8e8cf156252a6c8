"""Compare a site's pieces with the pieces that it was sent: names, shapes, types, finite numbers, distance."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from shared_components.federation.messages.message import RejectedUpdate


def check_pieces(
    pieces: Mapping[str, Tensor], sent: Mapping[str, Tensor], *, largest_change: float, noise: float = 0.0
) -> None:
    """Refuse a site's pieces that are missing, undeclared, misshapen, not finite or too far from what was sent.

    Integers, such as counts of batches, have no bound. ``noise`` is how much further than ``largest_change`` allows an
    update with noise may go.

    Raises:
        RejectedUpdate: The sentence names the first such piece, or how far the update went.
    """
    if missing := [name for name in sent if name not in pieces]:
        raise RejectedUpdate(f"{len(missing)} of its pieces are missing, the first is {missing[0]}")
    if extra := [name for name in pieces if name not in sent]:
        raise RejectedUpdate(f"it has pieces that nobody asked for, the first is {extra[0]}")
    for name, place in sent.items():
        value = pieces[name]
        if value.shape != place.shape or value.dtype != place.dtype:
            raise RejectedUpdate(
                f"piece {name} is {value.dtype} {tuple(value.shape)}; it should be {place.dtype} {tuple(place.shape)}"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise RejectedUpdate(f"piece {name} has values that are not finite")
    weights = [name for name, value in sent.items() if value.is_floating_point()]
    change = math.sqrt(sum(_squared(pieces[name].double() - sent[name].double()) for name in weights))
    limit = noise + largest_change * (1 + math.sqrt(sum(_squared(sent[name].double()) for name in weights)))
    if not change <= limit:
        raise RejectedUpdate(f"it moved the weights by {change:.3g}; the job allows {limit:.3g} (largest_change)")


def _squared(value: Tensor) -> float:
    return float(value.square().sum())
