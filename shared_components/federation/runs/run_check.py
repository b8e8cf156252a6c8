"""Check whether the files of a run belong together, at a resume and in a backup (`surgfl runs --check`).

A state is written after the files that it depends on. A copy that was made in another order, while a round was saved,
can have a state without them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.federation.messages import FederationError
from shared_components.federation.runs import run_folder
from shared_components.federation.runs.store import RECORDS, DamagedState, RoundFiles, rounds_in
from shared_components.networks.checkpoints import CheckpointError, load_metadata

SERVER, BEST = "server", "best.safetensors"


@dataclass(frozen=True)
class CheckedParty:
    """The server or a site of a run: after which rounds it can go on, counted from 1, and what is wrong."""

    name: str
    rounds: list[int]
    problems: list[str]


def records_of(path: Path, values: Mapping[str, Any]) -> list[bytes]:
    """Return the lines of the records' file that belong to the values of a state; DamagedState if it lacks them."""
    length, expected = values["log"]["length"], values["log"]["sha256"]
    try:
        with path.open("rb") as file:
            lines = file.read(length).splitlines(keepends=True)
    except OSError:
        lines = []
    if sum(map(len, lines)) != length or chained("", lines) != expected:
        raise DamagedState(f"{path} is not the file that the state was saved with")
    return lines


def chained(digest: str, lines: Iterable[bytes]) -> str:
    """Return the hash of a file after further lines, from its hash before them; empty for an empty file."""
    for line in lines:
        digest = hashlib.sha256(digest.encode() + line).hexdigest()
    return digest


def check_best(folder: Path, values: Mapping[str, Any]) -> None:
    """Raise DamagedState if a site's best model is older than the best model that the values of a state name."""
    if not (best := values.get("best")):
        return
    path = folder / BEST
    try:
        round = int(load_metadata(path)["round"])
    except (CheckpointError, LookupError, ValueError) as error:
        raise DamagedState(f"{path} cannot be read ({error})") from error
    if round < best["round"]:
        after = f"{round + 1}, and the state was saved with the best model of round {best['round'] + 1}"
        raise DamagedState(f"{path} is the best model of round {after}")


def check_run(run: Path, *, finished: bool = False) -> list[CheckedParty]:
    """Check the files of every party in a run's folder; a ``finished`` run may lack its states."""
    names = {path.name for path in run.iterdir() if (path / run_folder.ENROLLED).is_file() or rounds_in(path)}
    if (run / run_folder.DESCRIPTION).is_file() or (run / SERVER).is_dir():
        names.add(SERVER)
    return [_check_party(run, name, finished=finished) for name in sorted(names)]


def _check_party(run: Path, name: str, *, finished: bool) -> CheckedParty:
    folder = run / name
    files, rounds, problems = RoundFiles(folder, of=f"{run.parent.name}/{run.name}/{name}"), [], []
    for round in files.rounds():
        try:
            values = files.read(round)[1]
            if name != SERVER:
                check_best(folder, values)
            elif "log" in values:  # states of earlier versions contain the records
                records_of(folder / RECORDS, values)
            rounds.append(round + 1)
        except DamagedState as error:
            problems.append(str(error))
    if name != SERVER and files.rounds() and not (folder / run_folder.ENROLLED).is_file():
        problems.append(f"{folder / run_folder.ENROLLED} is missing")
    if name == SERVER:
        try:
            if run_folder.has_ended_a_round(run):
                run_folder.read_description(run)
                if not files.rounds() and not finished:
                    problems.append(f"{folder}/round-*.safetensors, the states, are missing")
        except FederationError as error:
            problems.append(str(error))
    return CheckedParty(name, rounds, problems)
