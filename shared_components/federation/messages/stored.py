"""Tensors of updates that wait on disk until a sum reads them.

The updates of all sites would need as many models' memory as there are sites. A sum needs one tensor of all sites at a
time: it runs in site order, tensor by tensor, whatever the order of arrival. The result is the same bit by bit.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from shared_components.federation.messages.message import Reply, total_bytes
from shared_components.networks.checkpoints import write_tensors

HELD = 2**28  # bytes of a round's updates that stay in memory


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

    def keep(self, task: str, site: str, reply: Reply) -> Reply:
        """Store the pieces of a reply, and at the finish its models; raise `NotWritten` if the disk is full."""
        groups = reply.groups
        if task == "finish":
            groups = {name: self._stored(f"{site}-{name}", group) for name, group in groups.items()}
        return replace(reply, pieces=self._stored(site, reply.pieces), groups=groups)

    def _stored(self, name: str, tensors: Mapping[str, Tensor]) -> Any:
        if isinstance(tensors, StoredPieces):
            return tensors
        size = total_bytes(tensors)
        if self._bytes_in_memory + size <= HELD:
            self._bytes_in_memory += size
            return tensors
        path = self._folder / f"{name}.safetensors"
        write_tensors(path, tensors, {})
        return StoredPieces({key: partial(_read, path, key) for key in tensors})

    def empty(self) -> None:
        """Remove all files; tensors that were not read are lost."""
        self._bytes_in_memory = 0
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(path: Path, name: str) -> Tensor:
    """Return one tensor, mapped into memory without the rest of the file."""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)
