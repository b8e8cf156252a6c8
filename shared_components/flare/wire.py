"""Convert messages to FLARE's data objects: one collection, with a nested object per group of tensors.

Site filters recurse into collections, so a hospital's own privacy filters see every group. FLARE's tensor decomposer
sends tensors, and plain values travel as JSON; nothing is pickled.
"""

import json
import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.app_opt.pt.lazy_tensor_dict import _LazyRef
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import FOBSContextKey

from shared_components.core.partition import Pieces
from shared_components.federation.messages import Message
from shared_components.federation.messages.stored import StoredPieces

HEADER = "surgfl"
ERROR = "surgfl_error"
PIECES, GROUP = "pieces", "group:"  # names in a collection: the network's pieces, and prefix of every other group
LONGEST_HEADER = 8_000_000  # characters; the longest header in practice is a partition's, under 100,000
CHATTY = ("nvflare.app_opt.pt.tensor_downloader", "nvflare.fuel.utils.memory_utils", "__main__.ClientTaskWorker")
ROOT, WANTED = _TENSOR_DISK_OFFLOAD_ROOT_DIR, FOBSContextKey.TENSOR_DISK_OFFLOAD


def register() -> None:
    """Register tensors with FLARE's serialiser, before the first message, and mute its log line about each tensor."""
    fobs.register(TensorDecomposer)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def to_shareable(message: Message) -> Shareable:
    """Convert a message to FLARE's object."""
    named = {PIECES: message.pieces} | {f"{GROUP}{name}": pieces for name, pieces in message.groups.items()}
    groups = {name: DXO(DataKind.WEIGHTS, data=dict(pieces)) for name, pieces in named.items() if pieces}
    return DXO(DataKind.COLLECTION, data=groups, meta={HEADER: json.dumps(message.header)}).to_shareable()


def from_wire(shareable: Shareable) -> Message:
    """Convert FLARE's object to a message; raise ValueError if it is no message of SurgFL."""
    dxo = from_shareable(shareable)
    if dxo.data_kind != DataKind.COLLECTION or HEADER not in (dxo.meta or {}):
        raise ValueError(f"a {dxo.data_kind} object without the header {HEADER!r} is no message of this job")
    tensors = {name: dict(group.data) for name, group in dxo.data.items()}
    pieces = _unread(tensors.pop(PIECES, {}))
    if unknown := sorted(name for name in tensors if not name.startswith(GROUP)):
        raise ValueError(f"it carries {unknown[0]!r}, which is neither pieces nor a group")
    groups = {name.removeprefix(GROUP): cast(Pieces, _unread(group)) for name, group in tensors.items()}
    header = dxo.meta[HEADER]
    if not isinstance(header, str) or len(header) > LONGEST_HEADER:
        raise ValueError(f"its header is no text of at most {LONGEST_HEADER} characters")
    try:
        return Message(json.loads(header), pieces, groups)
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error


def _unread(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors, or pieces that are read on access if FLARE has left some tensors in files."""
    if not any(isinstance(value, _LazyRef) for value in tensors.values()):
        return tensors
    return StoredPieces(
        {n: v.materialize if isinstance(v, _LazyRef) else partial(tensors.__getitem__, n) for n, v in tensors.items()}
    )


def server_cell(engine: Any) -> Any:
    """Return the cell where a job's answers arrive, which in a simulator is not the engine's own; None without one."""
    server = getattr(engine, "server", None)
    return getattr(server, "job_cell", None) or getattr(server, "cell", None)


def receive_in_files(cell: Any, folder: Path | None) -> None:
    """Write the tensors of later answers to files in a folder, which is emptied the first time; None: to memory.

    In memory, nine answers at once need as much as nine models; in files, an answer needs as much as two tensors.
    """
    if cell is None:  # nothing is received over a network
        return
    if folder is not None and cell.get_fobs_context().get(ROOT) != str(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cell.update_fobs_context({ROOT: str(folder)})
    cell.update_fobs_context({WANTED: folder is not None})
