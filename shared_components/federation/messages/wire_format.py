"""Wire format of a round's tensors: float32, or bfloat16 for matrices and kernels, which halves the bytes.

The server sends rounded weights. A site answers with the rounded change of the received weights, and the server adds
the change to its float32 weights. Rounded weights instead would lose every change below 1/512 of a weight, since
bfloat16 has 8 significant bits. Tensors with at most one axis, types other than float32, and the first and final
weights travel exactly.
"""

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
    """Round tensors to the wire format, to nearest, ties to even."""
    return {name: value.bfloat16() if _rounded(value, wire) else value for name, value in tensors.items()}


def pack_models(models: Models, wire: Wire) -> Models:
    """Return the models in wire format, each tensor rounded once for all sites."""
    return Models(
        pack(models.shared, wire),
        {site: pack(pieces, wire) for site, pieces in models.mixed.items()},
        {group: pack(pieces, wire) for group, pieces in models.broadcast.items()},
    )


def pack_change(trained: Pieces, received: Mapping[str, Tensor], wire: Wire) -> Pieces:
    """Return a site's update in wire format: the change of rounded tensors, all other pieces as trained."""
    return pack({n: v - received[n] if _rounded(v, wire) else v for n, v in trained.items()}, wire)


def unpack(tensors: Mapping[str, Tensor], wire: Wire) -> Mapping[str, Tensor]:
    """Return tensors in float32 (the inverse of `pack`), each converted when it is read.

    ValueError names a tensor in the wrong format.
    """
    if wire != BF16:
        return tensors
    check_format(tensors, wire)

    def widen(name: str) -> Tensor:
        value = tensors[name]
        return value.float() if _rounded(value, wire) else value

    return StoredPieces({name: partial(widen, name) for name in tensors})


def unpack_request(request: Request, wire: Wire) -> Request:
    """Return a request with tensors in float32."""
    groups = {name: dict(unpack(group, wire)) for name, group in request.groups.items()}
    return replace(request, pieces=dict(unpack(request.pieces, wire)), groups=groups)


def unpack_change(update: Mapping[str, Tensor], held: Mapping[str, Tensor], wire: Wire) -> Mapping[str, Tensor]:
    """Add a site's rounded change to the server's float32 weights ``held``, each tensor when it is read.

    A piece that is not in ``held``, or has another shape, stays as it is. ValueError names a tensor in the wrong
    format.
    """
    if wire != BF16:
        return update
    check_format(update, wire)

    def add(name: str) -> Tensor:
        value = update[name]
        if value.dtype != torch.bfloat16 or name not in held or held[name].shape != value.shape:
            return value
        return value.float().add_(held[name])

    return StoredPieces({name: partial(add, name) for name in update})


def check_format(tensors: Mapping[str, Tensor], wire: Wire) -> None:
    """Refuse a tensor that is not in the job's wire format; ValueError names it."""
    for name, value in tensors.items():
        expected = torch.bfloat16 if _rounded(value, wire) else torch.float32
        if value.dtype in FORMATS and value.dtype != expected:
            raise ValueError(f"{name} is {value.dtype}; the job's wire is {wire}, so {expected} is due")


def _rounded(value: Tensor, wire: Wire) -> bool:
    return wire == BF16 and value.dim() > 1 and value.dtype in FORMATS
