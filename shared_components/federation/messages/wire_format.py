"""The format in which a round's tensors travel: as they are, or matrices and kernels in bfloat16, half the bytes.

The server sends its weights rounded. A site answers with the rounded change of what it has received, which the server
adds to the weights that it holds in float32: bfloat16 has 8 significant bits, so that rounded weights would lose every
change below 1/512 of a weight, and no rounding adds up over rounds. Tensors of one axis at most (biases, norms, running
statistics, counts) and other types than float32 travel exactly, as do the first and the final weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from shared_components.core.method import Models
from shared_components.core.partition import Pieces
from shared_components.federation.messages.job import BF16, Wire
from shared_components.federation.messages.message import Request
from shared_components.federation.messages.stored import StoredPieces

FORMATS = (torch.float32, torch.bfloat16)


def pack(tensors: Pieces, wire: Wire) -> Pieces:
    """Round what travels rounded, to nearest, ties to even."""
    return {name: value.bfloat16() if _rounded(value, wire) else value for name, value in tensors.items()}


def pack_models(models: Models, wire: Wire) -> Models:
    """Return the models as the server sends them, each tensor rounded once for all sites."""
    return Models(
        pack(models.shared, wire),
        {site: pack(pieces, wire) for site, pieces in models.mixed.items()},
        {group: pack(pieces, wire) for group, pieces in models.broadcast.items()},
    )


def pack_change(trained: Pieces, received: Mapping[str, Tensor], wire: Wire) -> Pieces:
    """Return a site's update of a round: the rounded change of what travels rounded, the other pieces as trained."""
    return pack({n: v - received[n] if _rounded(v, wire) else v for n, v in trained.items()}, wire)


def unpack(tensors: Mapping[str, Tensor], wire: Wire) -> Mapping[str, Tensor]:
    """Undo `pack`, to float32; ValueError names a tensor that has not travelled in the job's format."""
    if wire != BF16:
        return tensors
    check_format(tensors, wire)
    return {name: value.float() if _rounded(value, wire) else value for name, value in tensors.items()}


def unpack_request(request: Request, wire: Wire) -> Request:
    """Return a request with its tensors as in `unpack`."""
    groups = {name: dict(unpack(group, wire)) for name, group in request.groups.items()}
    return replace(request, pieces=unpack(request.pieces, wire), groups=groups)


def unpack_change(update: Mapping[str, Tensor], held: Mapping[str, Tensor], wire: Wire) -> Mapping[str, Tensor]:
    """Undo `pack_change`, each tensor when it is read, by the weights ``held`` in float32 that were sent rounded.

    A piece without a place among them, or of another shape, stays as it is. ValueError as of `unpack`.
    """
    if wire != BF16:
        return update
    check_format(update, wire)
    return StoredPieces({name: partial(_added, update, held, name) for name in update})


def check_format(tensors: Mapping[str, Tensor], wire: Wire) -> None:
    """Refuse, by a ValueError that names it, a tensor that has not the job's format."""
    for name, value in tensors.items():
        expected = torch.bfloat16 if _rounded(value, wire) else torch.float32
        if value.dtype in FORMATS and value.dtype != expected:
            raise ValueError(f"{name} is {value.dtype}; the job's wire is {wire}, so {expected} is due")


def _rounded(value: Tensor, wire: Wire) -> bool:
    return wire == BF16 and value.dim() > 1 and value.dtype in FORMATS


def _added(update: Mapping[str, Tensor], held: Mapping[str, Tensor], name: str) -> Tensor:
    value = update[name]
    if value.dtype != torch.bfloat16 or name not in held or held[name].shape != value.shape:
        return value
    return held[name] + value.float()
