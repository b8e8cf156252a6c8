"""State files of a run: safetensors with JSON values and a hash in the header, replaced atomically.

They are outside the job's folder, because FLARE wipes a simulator's workspace at the start, starts a new client process
for every task there, and never resumes a killed server.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared_components.common.sanitise import one_line
from shared_components.core.partition import Pieces, update_with
from shared_components.networks.checkpoints import write_tensors

RESUME_VARIABLE = "SURGFL_RESUME"
RECORDS = "rounds.jsonl"  # in the server's folder of a run: the records of all rounds
SINGLE = "sites"  # in the server's folder of a run: folder of models that sites publish
_VALUES, _HASH, _OF = "surgfl", "sha256", "of"  # keys of the header
_PARTS = "parts"  # key of the values, and folder of the files
_ROUND = re.compile(r"round-(\d{5,})\.safetensors")

Check = Callable[[Mapping[str, Any]], None]

logger = logging.getLogger(__name__)


class DamagedState(ValueError):
    """State file that is missing or has changed since it was written; the message names the file."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, of: str = "") -> None:
    """Write tensors and JSON values as one safetensors file, atomically, with a hash of both.

    ``of`` names the owner of the state; `load_tensors` needs the same text.
    """
    text = json.dumps(values)
    _write_hashed(path, tensors, text, of, hash_of(tensors, of + text))


def _write_hashed(path: Path, tensors: Mapping[str, Tensor], text: str, of: str, digest: str) -> None:
    """Write a file as `save_tensors` does, with known ``text`` of the values and hash ``digest``."""
    apart: dict[str, Tensor] = {}  # tensors that share no memory, as safetensors demands: two sites may have one mean
    storages: set[int] = set()
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        apart[name] = plain.clone() if address in storages else plain
        storages.add(address)
    write_tensors(path, apart, {_VALUES: text, _OF: of, _HASH: digest})


def hash_of(tensors: Mapping[str, Tensor], values: str = "") -> str:
    """Return the SHA-256 of a text, and of the tensors' names, dtypes, shapes and bytes in order of name."""
    digest = hashlib.sha256(f"{values}\n".encode())
    for name in sorted(tensors):
        update_with(digest, name, tensors[name])
    return digest.hexdigest()


def load_tensors(path: Path, *, of: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and values from `save_tensors`; DamagedState if the file has changed or has another owner."""
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            header = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedState(f"{path} cannot be read ({error})") from error
    if not {_VALUES, _HASH, _OF} <= header.keys():
        raise DamagedState(f"{path} does not name its owner: it is damaged, or from an older version of surgfl")
    if hash_of(tensors, header[_OF] + header[_VALUES]) != header[_HASH]:
        raise DamagedState(f"{path} has changed since it was written: its hash is another")
    if header[_OF] != of:
        raise DamagedState(f"{path} is the state of {one_line(header[_OF])!r}; the state of {of!r} is due there")
    return tensors, json.loads(header[_VALUES])


def _header(path: Path) -> dict[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return file.metadata() or {}


def named_groups(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Flatten groups of tensors into one dictionary with names ``group|name``."""
    return {f"{group}|{name}": value for group, pieces in groups.items() for name, value in pieces.items()}


def groups_of(tensors: Mapping[str, Tensor]) -> dict[str, Pieces]:
    """Return the groups that `named_groups` has flattened, without empty groups."""
    groups: dict[str, Pieces] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition("|")
        groups.setdefault(group, {})[rest] = value
    return groups


def rounds_in(folder: Path) -> list[int]:
    """Return the rounds that have a state file in a folder, ascending."""
    matches = [_ROUND.fullmatch(path.name) for path in folder.glob("round-*") if path.is_file()]
    return sorted(int(match[1]) for match in matches if match)


class RoundFiles:
    """State files of a party in ``folder``: for its newest ``keep`` rounds, and for each ``every``-th round.

    Several states are needed: a state may be damaged, and a killed round may have finished at some sites, which train
    it again from an earlier state. ``of`` is the owner, such as ``job/run/site-1``; the state of another owner or round
    counts as damaged.
    """

    def __init__(self, folder: Path, *, of: str, keep: int = 2, every: int = 0) -> None:
        self.folder, self._of, self._keep, self._every = folder, of, keep, every

    def path(self, round: int) -> Path:
        return self.folder / f"round-{round:05d}.safetensors"

    def rounds(self) -> list[int]:
        """Return the rounds that have a state, ascending."""
        return rounds_in(self.folder)

    def read(self, round: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state after one round; DamagedState if it is missing or damaged."""
        tensors, values = load_tensors(self.path(round), of=f"{self._of}, round {round + 1}")
        for name, digest in values.pop(_PARTS, {}).items():
            path = self._part_file(name, digest)
            tensors |= load_tensors(path, of=f"{self._of}, {name}")[0]
            if _header(path)[_HASH] != digest:
                raise DamagedState(f"{path} is not the part that {self.path(round).name} was saved with")
        return tensors, values

    def save(
        self,
        round: int,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
        parts: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Write the state after a round; remove later states, and earlier states that need not be kept.

        Each of ``parts`` has a file of its own, named by its hash, which is only written if no earlier state has
        the same part, intact. The round's file names its parts and is written last, so that a state never mixes rounds.
        """
        if parts:
            values = {**values, _PARTS: {name: self._save_part(name, part) for name, part in parts.items()}}
        save_tensors(self.path(round), tensors, values, of=f"{self._of}, round {round + 1}")
        done = [other for other in self.rounds() if other <= round]
        kept = {*done[-self._keep :], *(other for other in done if self._every and (other + 1) % self._every == 0)}
        for other in {*self.rounds()} - kept:
            self.path(other).unlink()
        if (folder := self.folder / _PARTS).is_dir():
            named = {path for other in kept for path in self._part_files(other)}
            for path in {*folder.iterdir()} - named:
                path.unlink()

    def _part_file(self, name: str, digest: str) -> Path:
        return self.folder / _PARTS / f"{name}-{digest[:16]}.safetensors"

    def _save_part(self, name: str, part: Mapping[str, Tensor]) -> str:
        of, text = f"{self._of}, {name}", "{}"
        digest = hash_of(part, of + text)
        path = self._part_file(name, digest)
        try:
            load_tensors(path, of=of)
        except DamagedState:  # or missing
            _write_hashed(path, part, text, of, digest)
        return digest

    def _part_files(self, round: int) -> list[Path]:
        """Return the files of a state's parts; none for a damaged state."""
        try:
            parts = json.loads(_header(self.path(round))[_VALUES]).get(_PARTS, {})
        except (SafetensorError, OSError, ValueError, LookupError):
            return []
        return [self._part_file(name, digest) for name, digest in parts.items()]

    def load(
        self, *, before: int | None = None, check: Check = lambda values: None
    ) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return round, tensors and values of the newest intact state (of a round below ``before``); None without any.

        ``check`` raises DamagedState for the values of a state without its other files. DamagedState: all states are
        damaged; the message names the newest.
        """
        damaged: list[DamagedState] = []
        for round in [round for round in reversed(self.rounds()) if before is None or round < before]:
            try:
                state = round, *self.read(round)
                check(state[2])
            except DamagedState as error:
                damaged.append(error)
                continue
            for skipped in damaged:
                logger.warning("%s; going on from %s", skipped, self.path(round).name)
            return state
        if damaged:
            raise DamagedState(f"{damaged[0]}; put an intact copy there, or start a new run")
        return None
