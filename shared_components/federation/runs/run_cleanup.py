"""List the runs on this disk with their size and status, and remove runs."""

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.core import replicas
from shared_components.core.feature_cache import FOLDER
from shared_components.data import frame_cache
from shared_components.federation.messages import FederationError
from shared_components.federation.messages.job import LATEST
from shared_components.federation.runs import run_folder
from shared_components.federation.runs.run_folder import DESCRIPTION, is_locked, order
from shared_components.federation.runs.store import rounds_in
from shared_components.reporting.records import EARLY, RecordError, read_lines

_PLACES = ("{}-state", "{}/runs", "{}/surgfl")  # state of a simulator's workspace, a comparison, a startup kit
_FOLDERS_OF_A_SITE = {FOLDER, frame_cache.FOLDER, replicas.FOLDER, "overlays", "sent", "tensorboard"}
_FILE_OF_A_RUN = re.compile(  # with a dot before and a number after: from an interrupted `atomically`
    r"(\.?(process|(step|quarantine|enrolled|secure_sums|final|privacy|what-leaves)\.json|(rounds|tasks)\.jsonl)(\.\d+)?"
    rf"|{re.escape(run_folder.LOCK)}|.*\.safetensors(\.\d+)?)"
)


@dataclass(frozen=True)
class KeptRun:
    """One run on this disk."""

    folder: Path  # <state>/<job>/<when>
    method: str  # empty if the run never began
    done: int  # finished rounds; at a site of a deployment, rounds that the site has trained; 0 if unknown
    rounds: int  # rounds of the job; 0 if unknown
    sites: int
    size: int  # bytes
    latest: bool  # whether the link `latest` names the run
    status: str  # running, finished, failed, stopped, unfinished or never began

    @property
    def name(self) -> str:
        """``<job>/<when>``."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def when(self) -> str:
        """``2026-11-22 12:35:09``, in UTC."""
        day, time = self.folder.name.split("-")[:2]
        return f"{day[:4]}-{day[4:6]}-{day[6:]} {time[:2]}:{time[2:4]}:{time[4:]}"


def find_runs(place: Path, *, also_foreign: bool = False) -> list[KeptRun]:
    """List the runs of a workspace, a state folder, a job's folder, a comparison or a startup kit, oldest first.

    With ``also_foreign``, a run may contain foreign files, such as files of an interrupted copy. FederationError: the
    place is none of these.
    """
    places = [place, *(Path(form.format(place)) for form in _PLACES)]
    below = [path for folder in places if folder.is_dir() for path in sorted([*folder.iterdir(), *folder.glob("*/*")])]
    folders = list(filter(_has_name_of_run if also_foreign else is_run, below))
    if not folders and not any(folder.is_dir() for folder in places[1:]):
        remedy = "give a workspace of the simulator, the folder of its state, a comparison's folder or a startup kit"
        raise FederationError(f"{place}: there are no runs, neither in it nor in {place}-state; {remedy}")
    return sorted(map(read_run, folders), key=lambda run: (order(run.folder.name), run.name))


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run; a folder with any foreign file is none."""
    if not _has_name_of_run(folder):
        return False
    description = folder / DESCRIPTION
    if description.is_file():
        return bool(_read_json(description).get("job"))
    files = [path.relative_to(folder).parts for path in folder.rglob("*") if not path.is_dir()]
    return all(
        parts[1] in _FOLDERS_OF_A_SITE if len(parts) > 2 else _FILE_OF_A_RUN.fullmatch(parts[-1]) for parts in files
    )


def _has_name_of_run(folder: Path) -> bool:
    return bool(run_folder.STAMP.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink()


def read_run(folder: Path) -> KeptRun:
    """Read a run's method, rounds, size and status from its files."""
    running = is_locked(folder)  # before the records, since a run may end while they are read
    description = _read_json(folder / DESCRIPTION) or _from_enrolment(folder)
    records = _records(folder / "server" / "rounds.jsonl")
    done = sum(record.get("kind") == "aggregation" for record in records) or description.get("trained", 0)
    ended = any(record.get("kind") == "outsider" for record in records) or any(folder.glob("*/final.json"))
    latest = folder.with_name(LATEST)
    if running or ended:
        status = "running" if running else "finished"
    else:
        early = [status for key, status in EARLY.items() if description.get(key)]
        status = early[0] if early else "unfinished" if description else "never began"
    return KeptRun(
        folder,
        description.get("method", ""),
        done,
        max(done, description.get("rounds", 0)),  # a resume may have more rounds than the enrolment
        len(description.get("sites") or [*folder.glob("*/quarantine.json")]),
        sum(_sizes(folder).values()),
        latest.is_symlink() and os.readlink(latest) == folder.name,
        status,
    )


def _from_enrolment(folder: Path) -> dict[str, Any]:
    """Describe a run by the job that a site here has enrolled with, as in a site's deployment; empty without any."""
    for path in sorted(folder.glob(f"*/{run_folder.ENROLLED}")):
        job = _read_json(path).get("job")
        if isinstance(job, dict) and isinstance(job.get("method"), str) and isinstance(job.get("rounds"), int):
            last = rounds_in(path.parent)[-1:] or [-1]
            return {"method": job["method"], "rounds": job["rounds"], "trained": last[0] + 1}
    return {}


def chosen_runs(runs: Iterable[KeptRun], names: Iterable[str]) -> list[KeptRun]:
    """Return the runs with these names: ``<job>/<when>``, a unique ``<when>``, or a path; else FederationError."""
    runs, chosen = list(runs), []
    for name in names:
        path = Path(name).resolve()
        matches = [run for run in runs if name in (run.name, run.folder.name) or path == run.folder.resolve()]
        if len(matches) != 1:
            what, known = "several runs" if matches else "no run", ", ".join(run.name for run in runs)
            raise FederationError(f"{name} names {what}; the runs are {known or 'none'}")
        chosen += matches
    return list(dict.fromkeys(chosen))


def older_runs(runs: Iterable[KeptRun], keep: int) -> list[KeptRun]:
    """Return all but the newest ``keep`` runs of each job, without running ones."""
    of_job: dict[Path, list[KeptRun]] = {}
    for run in runs:
        of_job.setdefault(run.folder.parent, []).append(run)
    older = [run for many in of_job.values() for run in (many[:-keep] if keep else many)]
    return [run for run in older if run.status != "running"]


def remove(run: KeptRun, *, models_only: bool = False) -> int:
    """Remove a run, or only its models and states; return the bytes freed.

    Models with a hard link in a workspace stay there, and do not count. FederationError: the folder is running, or is
    no run.
    """
    if not is_run(run.folder):
        raise FederationError(f"{run.folder}: is no run; it was left in place")
    with run_folder.lock_run(run.folder):
        before = _sizes(run.folder, freed=True)
        if models_only:
            for path in run.folder.rglob("*.safetensors"):
                path.unlink()
            for path in run.folder.glob(f"*/{frame_cache.FOLDER}"):  # of a run that has not ended
                shutil.rmtree(path)
        else:
            aside = run.folder.with_name(f".{run.folder.name}.removed-{os.getpid()}")
            run.folder.rename(aside)  # a removal that is killed leaves no half of a run
            shutil.rmtree(aside)
    if run.latest and not models_only:
        job = run.folder.parent
        (job / LATEST).unlink()
        if left := [path for path in job.iterdir() if is_run(path) and (path / DESCRIPTION).is_file()]:
            run_folder.point_latest_to(max(left, key=lambda path: order(path.name)))
    return sum(before.values()) - sum(_sizes(run.folder, freed=True).values())


def _sizes(folder: Path, *, freed: bool = False) -> dict[int, int]:
    """Return the bytes of every file by inode; with ``freed``, without files that have hard links elsewhere."""
    files = [path.lstat() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = [file.st_ino for file in files]
    return {file.st_ino: file.st_size for file in files if not freed or file.st_nlink <= names.count(file.st_ino)}


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        return read_lines(path)
    except RecordError as error:
        raise FederationError(f"{error}; copy the run again, or remove its folder") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
