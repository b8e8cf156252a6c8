"""Tensors of updates that wait on the disk until a sum reads them, one at a time.

A server that holds the update of every site needs as many models' memory as there are sites. Sums run in site order,
tensor by tensor, whatever the order of arrival: one tensor of all sites at a time is all that they need, and no bit
changes.
"""

from __future__ import annotations

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
    """Tensors by name, each read whenever it is asked for, by a function of its own.

    A tensor that was read outlives the files.
    """

    def __init__(self, readers: Mapping[str, Callable[[], Tensor]]) -> None:
        self._readers = dict(readers)

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class Inbox:
    """Store what arrives of a round in files of a folder of its own, as soon as `HELD` bytes are in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = 0

    def keep(self, task: str, site: str, reply: Reply) -> Reply:
        """Return a reply whose pieces, or at the finish whole models, are in memory or on the disk.

        `common.atomic.NotWritten` where that is full.
        """
        groups = reply.groups
        if task == "finish":
            groups = {name: self._stored(f"{site}-{name}", group) for name, group in groups.items()}
        return replace(reply, pieces=self._stored(site, reply.pieces), groups=groups)

    def _stored(self, name: str, tensors: Mapping[str, Tensor]) -> Any:
        size = total_bytes(tensors)
        if isinstance(tensors, StoredPieces) or self._held + size <= HELD:
            self._held += 0 if isinstance(tensors, StoredPieces) else size
            return tensors
        path = self._folder / f"{name}.safetensors"
        write_tensors(path, tensors, {})
        return StoredPieces({key: partial(_read, path, key) for key in tensors})

    def empty(self) -> None:
        """Remove what was stored; nothing of it may be read any more."""
        self._held = 0
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(path: Path, name: str) -> Tensor:
    """Return one tensor of a file, mapped into memory: no more of the file is read."""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)
