"""Tensors of updates that wait on disk until a sum reads them.

The updates of all sites would need as many models' memory as there are sites. A sum needs one tensor of all sites at a
time: it runs in site order, tensor by tensor, whatever the order of arrival. The result is the same bit by bit.
"""

import json
import mmap
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared_components.federation.messages.message import Reply, total_bytes
from shared_components.networks.checkpoints import write_tensors

HELD = 2**28  # bytes of a round's updates that stay in memory
SMALL = 2**14  # bytes of a tensor that is not worth a read, and always stays in memory


class StoredPieces(Mapping[str, Tensor]):
    """Tensors by name, each read by its function on every access; a tensor that was read outlives the files."""

    def __init__(self, readers: Mapping[str, Callable[[], Tensor]]) -> None:
        self._readers = dict(readers)

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class Inbox:
    """Replies of a round: in memory up to `HELD` bytes, then as files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bytes_in_memory = 0

    def keep(self, site: str, reply: Reply) -> Reply:
        """Store the pieces and groups of a reply; raise `NotWritten` if the disk is full."""
        groups = {
            name: self._stored(f"{site}/{number}", group) for number, (name, group) in enumerate(reply.groups.items())
        }
        return replace(reply, pieces=self._stored(site, reply.pieces), groups=groups)

    def _stored(self, name: str, tensors: Mapping[str, Tensor]) -> Any:
        if isinstance(tensors, StoredPieces):
            return tensors
        size = total_bytes(tensors)
        if self._bytes_in_memory + size <= HELD:
            self._bytes_in_memory += size
            return tensors
        path = self._folder / f"{name}.safetensors"
        large = {key: value for key, value in tensors.items() if value.numel() * value.element_size() > SMALL}
        write_tensors(path, large, {})
        return StoredPieces({key: lambda value=value: value for key, value in tensors.items()} | readers(path, large))

    def empty(self) -> None:
        """Remove all files; tensors that were not read are lost."""
        self._bytes_in_memory = 0
        shutil.rmtree(self._folder, ignore_errors=True)


def readers(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each of the tensors of a safetensors file, which maps only this tensor into memory."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    starts = {name: 8 + size + header[name]["data_offsets"][0] for name in tensors}
    return {name: partial(_read, path, starts[name], value.dtype, value.shape) for name, value in tensors.items()}


def _read(path: Path, start: int, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    if not (count := shape.numel()):
        return torch.empty(shape, dtype=dtype)
    before = start % mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:
        length = before + count * dtype.itemsize
        mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=start - before)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=before).reshape(shape)
