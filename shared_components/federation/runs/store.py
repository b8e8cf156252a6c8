"""State files of a run: safetensors with JSON values and a hash in the header, replaced atomically.

They lie outside the job's own folder: FLARE wipes a simulator's workspace at the start, starts a new client process for
every task there, and never resumes a killed server.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared_components.common.sanitise import one_line
from shared_components.core.partition import Pieces, update_with
from shared_components.networks.checkpoints import write_tensors

STATE_VARIABLE = "SURGFL_STATE"
RESUME_VARIABLE = "SURGFL_RESUME"
RECORDS = "rounds.jsonl"  # in the server's folder of a run: the records of all rounds
SINGLE = "sites"  # likewise: the folder of models that sites give to the job's result
_VALUES, _HASH, _OF = "surgfl", "sha256", "of"  # in the header
_ROUND = re.compile(r"round-(\d{5,})\.safetensors")

logger = logging.getLogger(__name__)


class DamagedState(ValueError):
    """A state that is not as it was written; the sentence names the file and why."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, of: str = "") -> None:
    """Write tensors and JSON values as one safetensors file, atomically, with a hash of both.

    ``of`` names whose state it is; :func:`load_tensors` must be given the same text.
    """
    apart, text = _apart(tensors), json.dumps(values)
    write_tensors(path, apart, {_VALUES: text, _OF: of, _HASH: hash_of(apart, of + text)})


def hash_of(tensors: Mapping[str, Tensor], values: str = "") -> str:
    """Return the SHA-256 of a text, and of the tensors' names, dtypes, shapes and bytes in order of name."""
    digest = hashlib.sha256(f"{values}\n".encode())
    for name in sorted(tensors):
        update_with(digest, name, tensors[name])
    return digest.hexdigest()


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors that share no memory, as safetensors demands: two sites may hold the same mean."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        where = plain.untyped_storage().data_ptr()
        apart[name] = plain.clone() if where in storages else plain
        storages.add(where)
    return apart


def load_tensors(path: Path, *, of: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Undo :func:`save_tensors`.

    Raises:
        DamagedState: The file cannot be read, is not what was written, or is the state of something else.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            header = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedState(f"{path} cannot be read ({error})") from error
    if not {_VALUES, _HASH, _OF} <= header.keys():
        raise DamagedState(f"{path} does not say whose state it is: it is damaged, or of an older version of surgfl")
    if hash_of(tensors, header[_OF] + header[_VALUES]) != header[_HASH]:
        raise DamagedState(f"{path} has changed since it was written: its hash is another")
    if header[_OF] != of:
        raise DamagedState(f"{path} is the state of {one_line(header[_OF])!r}, and that of {of!r} is due there")
    return tensors, json.loads(header[_VALUES])


def named_groups(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Flatten groups of tensors into one dictionary with names ``group|name``."""
    return {f"{group}|{name}": value for group, pieces in groups.items() for name, value in pieces.items()}


def groups_of(tensors: Mapping[str, Tensor]) -> dict[str, Pieces]:
    """Undo :func:`named_groups`, but for groups without tensors."""
    groups: dict[str, Pieces] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition("|")
        groups.setdefault(group, {})[rest] = value
    return groups


def rounds_in(folder: Path) -> list[int]:
    """Return the rounds whose state files a folder holds, ascending; other files are ignored."""
    found = [_ROUND.fullmatch(path.name) for path in folder.glob("round-*") if path.is_file()]
    return sorted(int(match[1]) for match in found if match)


class RoundFiles:
    """The states after the newest ``keep`` rounds of one party in one folder.

    More than one, because a state may be damaged, and because a killed round may have finished at some sites: those
    train it again from their state before, which may be any number of rounds old where a site was absent.

    Args:
        folder: Created with the first state.
        of: Job, run and party, ``job/run/site-1``; the state of another party or round counts as damaged.
        keep: How many states remain.
    """

    def __init__(self, folder: Path, *, of: str, keep: int = 2) -> None:
        self.folder, self._of, self._keep = folder, of, keep

    def path(self, round: int) -> Path:
        """Return the file of one round."""
        return self.folder / f"round-{round:05d}.safetensors"

    def rounds(self) -> list[int]:
        """Return the rounds that have a state, see `rounds_in`."""
        return rounds_in(self.folder)

    def read(self, round: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state after one round; raise DamagedState where it is missing or damaged."""
        return load_tensors(self.path(round), of=self._of_round(round))

    def _of_round(self, round: int) -> str:
        return f"{self._of}, round {round + 1}"

    def save(self, round: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write the state after a round; of the others keep only the newest ones before it."""
        save_tensors(self.path(round), tensors, values, of=self._of_round(round))
        kept = [other for other in self.rounds() if other <= round][-self._keep :]
        for other in {*self.rounds()} - {*kept}:
            self.path(other).unlink()

    def load(self, *, before: int | None = None) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest intact state (of a round below ``before``), or None where there is none at all.

        Raises:
            DamagedState: All states are damaged; the sentence names the newest.
        """
        damaged: list[DamagedState] = []
        for round in [round for round in reversed(self.rounds()) if before is None or round < before]:
            try:
                found = round, *self.read(round)
            except DamagedState as error:
                damaged.append(error)
                continue
            for passed_over in damaged:
                logger.warning("%s; going on from %s", passed_over, self.path(round).name)
            return found
        if damaged:
            raise DamagedState(f"{damaged[0]}; put an intact copy there, or start a new run")
        return None


def state_root(workspace_root: Path, *, simulator: bool) -> Path:
    """Return the folder of all runs: what ``SURGFL_STATE`` names; else ``<workspace>-state`` beside a simulator's
    workspace, or ``surgfl`` in the startup kit of a deployment, where FLARE removes job folders alone."""
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).resolve()
    if simulator:  # workspace_root is <workspace>/<site>
        workspace = workspace_root.resolve().parent
        return workspace.with_name(f"{workspace.name}-state")
    return workspace_root.resolve() / "surgfl"
