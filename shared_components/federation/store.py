"""State files of a run: safetensors with JSON in the header, written beside and renamed.

They live outside the job's own folder, because FLARE wipes a simulator's workspace at start, starts a new
client process for every task there, and does not resume a killed server anywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from shared_components.atomic import atomically
from shared_components.partition import Pieces

STATE_VARIABLE = "SURGFL_STATE"
RESUME_VARIABLE = "SURGFL_RESUME"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and plain values as one safetensors file, beside and renamed."""
    with atomically(path) as beside:
        save_file(_apart(tensors), str(beside), metadata={"surgfl": json.dumps(values)})


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors that share no memory: two sites may hold one and the same mean."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        where = plain.untyped_storage().data_ptr()
        apart[name] = plain.clone() if where in storages else plain
        storages.add(where)
    return apart


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Undo :func:`save_tensors`."""
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        values = json.loads((file.metadata() or {}).get("surgfl", "{}"))
    return tensors, values


def named_groups(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Name the tensors of groups so that one file can hold them: ``group|name``."""
    return {f"{group}|{name}": value for group, pieces in groups.items() for name, value in pieces.items()}


def groups_of(tensors: Mapping[str, Tensor]) -> dict[str, Pieces]:
    """Undo :func:`named_groups`; a group without tensors is not there."""
    groups: dict[str, Pieces] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition("|")
        groups.setdefault(group, {})[rest] = value
    return groups


class RoundFiles:
    """The state after each round in one folder; the newest two are kept, whatever their numbers.

    Two, because a killed round may have finished at some sites: those train it again from the one before, which
    need not be the round before: a site may have been absent for any number of rounds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, round: int) -> Path:
        """Return the file of one round."""
        return self.folder / f"round-{round:05d}.safetensors"

    def rounds(self) -> list[int]:
        """Return the rounds whose state is whole, ascending."""
        return sorted(int(p.stem.removeprefix("round-")) for p in self.folder.glob("round-*.safetensors"))

    def save(self, round: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write the state after a round and drop all but it and the newest one before it."""
        save_tensors(self.path(round), tensors, values)
        before = max((other for other in self.rounds() if other < round), default=None)
        for other in self.rounds():
            if other not in (round, before):
                self.path(other).unlink()

    def load(self, *, before: int | None = None) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest state (of a round below ``before``), or None where there is none."""
        rounds = [r for r in self.rounds() if before is None or r < before]
        return (rounds[-1], *load_tensors(self.path(rounds[-1]))) if rounds else None


def state_root(workspace_root: Path, *, simulator: bool) -> Path:
    """Return where runs are kept.

    ``SURGFL_STATE`` decides; otherwise ``<workspace>-state`` beside a simulator's workspace, and ``surgfl``
    inside the startup kit's own folder in a provisioned deployment (only job folders are removed there).
    """
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).resolve()
    if simulator:  # workspace_root is <workspace>/<site>
        workspace = workspace_root.resolve().parent
        return workspace.with_name(f"{workspace.name}-state")
    return workspace_root.resolve() / "surgfl"


def newest_run(folder: Path) -> Path | None:
    """Return the newest run of a job that has a server state."""
    runs = [p.parent for p in folder.glob("[0-9]*/run.json") if RoundFiles(p.parent / "server").rounds()]
    return max(runs, key=lambda p: p.name, default=None)
