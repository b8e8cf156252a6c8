"""Carry messages as FLARE's data objects: one collection, a nested object per group of tensors.

Site filters recurse into collections, so a hospital's own privacy filters see every group. Tensors travel
by FLARE's tensor decomposer, plain values as JSON; nothing is pickled.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.app_opt.pt.lazy_tensor_dict import _LazyRef
from nvflare.fuel.utils import fobs

from shared_components.core.partition import Pieces
from shared_components.federation.messages import Message
from shared_components.federation.messages.stored import StoredPieces

HEADER = "surgfl"
ERROR = "surgfl_error"
PIECES, GROUP = "pieces", "group:"  # names in a collection: the network's pieces, and of every other group

LONGEST_HEADER = 8_000_000  # characters; the longest by far is a partition's, under 100,000

CHATTY = ("nvflare.app_opt.pt.tensor_downloader", "nvflare.fuel.utils.memory_utils", "__main__.ClientTaskWorker")


def register() -> None:
    """Register tensors with FLARE's serialiser (both sides, before the first message), and mute its line about each."""
    fobs.register(TensorDecomposer)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def to_shareable(message: Message) -> Shareable:
    """Wrap a message."""
    named = {PIECES: message.pieces} | {f"{GROUP}{name}": pieces for name, pieces in message.groups.items()}
    groups = {name: DXO(DataKind.WEIGHTS, data=dict(pieces)) for name, pieces in named.items() if pieces}
    return DXO(DataKind.COLLECTION, data=groups, meta={HEADER: json.dumps(message.header)}).to_shareable()


def from_wire(shareable: Shareable) -> Message:
    """Unwrap a message.

    Raises:
        ValueError: It is not one of ours.
    """
    dxo = from_shareable(shareable)
    if dxo.data_kind != DataKind.COLLECTION or HEADER not in (dxo.meta or {}):
        raise ValueError(f"a {dxo.data_kind} object without the header {HEADER!r} is no message of this job")
    tensors = {name: dict(group.data) for name, group in dxo.data.items()}
    pieces = _unread(tensors.pop(PIECES, {}))
    if odd := sorted(name for name in tensors if not name.startswith(GROUP)):
        raise ValueError(f"it carries {odd[0]!r}, which is neither pieces nor a group")
    groups = {name.removeprefix(GROUP): cast(Pieces, _unread(group)) for name, group in tensors.items()}
    header = dxo.meta[HEADER]
    if not isinstance(header, str) or len(header) > LONGEST_HEADER:
        raise ValueError(f"its header is no text of at most {LONGEST_HEADER} characters")
    try:
        values = json.loads(header)
    except RecursionError as error:
        raise ValueError("its header nests too deep") from error
    return Message(values, pieces, groups)


def _unread(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return tensors as they are; where FLARE has left some in files (`receiving`), as pieces that are read late."""
    if not any(isinstance(value, _LazyRef) for value in tensors.values()):
        return tensors
    return StoredPieces(
        {n: v.materialize if isinstance(v, _LazyRef) else partial(tensors.__getitem__, n) for n, v in tensors.items()}
    )
