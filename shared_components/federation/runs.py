"""Folders of runs: a new one, the newest to resume, the one that people mean, and who works on one."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.common.atomic import atomically, try_lock, write_json
from shared_components.core.method import Method
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.store import RECORDS, DamagedState, RoundFiles, rounds_in

logger = logging.getLogger(__name__)

DESCRIPTION, LATEST, LOCK = "run.json", "latest", "run.lock"
ENDED = "rounds_ended"  # in run.json: how many; the server's folder may be lost
SUBMISSIONS = "submissions.json"  # FLARE's ids of the jobs that worked on a run, oldest first
STAMP = re.compile(r"\d{8}-\d{6}(-\d+)?")
OUTLIVES = 120.0  # seconds, at most, that a site's process of a job lives on after its server has died
MAY_CHANGE = frozenset({"rounds", "min_sites", "grace_seconds", "longest_wait_seconds"})
"""What a resumed job may say otherwise than when it began."""


def open_run(job: Job, root: Path, *, resume: bool | str) -> Path:
    """Return the folder of the newest run to resume; without one, or without ``resume``, of a new run.

    Where ``resume`` is a text, there must be such a run: ``latest``, the name of a run, or FLARE's id of a job.

    ``latest`` beside the runs names the one whose sites enrolled last; that is the newest.

    Raises:
        FederationError: The newest run was of another job, or its run.json is missing or damaged, or nothing says
            which run is the newest, or there is none of that name.
    """
    jobs = root / job.name
    newest = chosen_run(jobs, resume)
    if newest is None:
        folder = jobs / _new_name(jobs)
        folder.mkdir(parents=True)
        return folder
    if changed := changed_settings(_description(newest)["job"], job):
        raise FederationError(
            f"{newest} ran with other settings of {', '.join(changed)}; put them back to resume, or start a new run"
        )
    return newest


def chosen_run(jobs: Path, resume: bool | str) -> Path | None:
    """Return the run of a job that is meant, see `open_run`.

    Raises:
        FederationError: It is named, and not there, or none of its rounds has ended.
    """
    if not isinstance(resume, str):
        return newest_run(jobs) if resume else None
    if resume == LATEST:
        found = newest_run(jobs)
    else:
        runs = [run.parent for run in jobs.glob(f"[0-9]*/{DESCRIPTION}")]
        found = next((run for run in runs if resume == run.name or resume in submissions(run)), None)
    if found is None or not has_ended_a_round(found):
        raise FederationError(
            f"{jobs} has no run {resume!r} of which a round has ended; submit the job without resume to begin anew"
        )
    return found


def submissions(run: Path) -> list[str]:
    """Return the ids that FLARE has given to the jobs that worked on a run, oldest first."""
    path = run / SUBMISSIONS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def note_submission(run: Path, job_id: str) -> None:
    """Keep FLARE's id of the job that works on a run now."""
    write_json(run / SUBMISSIONS, [*submissions(run), job_id])


def changed_settings(before: Mapping[str, Any], job: Job) -> list[str]:
    """Return what a job says otherwise than before in its run, although it must stay: ``method``, ``training.seed``."""
    unsaid = Job(job.name, job.bundle, job.method).to_json()  # by an older version, which knew fewer settings
    old, new = (json.loads(json.dumps(values)) for values in (unsaid | dict(before), job.to_json()))
    changed: list[str] = []
    for key in (key for key in new if key not in MAY_CHANGE and new[key] != old[key]):
        pair = new[key], old[key]
        inner = sorted(set().union(*pair)) if all(isinstance(one, dict) for one in pair) else []
        changed += [f"{key}.{name}" for name in inner if pair[0].get(name) != pair[1].get(name)] or [key]
    return changed


def newest_run(jobs: Path) -> Path | None:
    """Return the run that ``latest`` names, whatever the folders' names say; None where it has not ended a round.

    Raises:
        FederationError: ``latest`` is no link to a run, or missing where there are several.
    """
    latest, runs = jobs / LATEST, [path for path in jobs.glob("[0-9]*") if has_ended_a_round(path)]
    if latest.is_symlink():
        newest = jobs / Path(os.readlink(latest)).name
        if not newest.is_dir():
            raise FederationError(
                f"{latest} names {newest.name}, which is gone; put it back to resume, or start a new run"
            )
        return newest if has_ended_a_round(newest) else None
    if latest.exists() or len(runs) > 1:
        raise FederationError(
            f"{latest} is no link to the newest run; make it one to resume (ln -sfn RUN latest), or start a new run"
        )
    return runs[0] if runs else None


def order(name: str) -> tuple[str, int]:
    """Return what the names of runs are sorted by: the time, and a number among those of one time."""
    day, time, *number = name.split("-")
    return f"{day}-{time}", int(number[0]) if number else 0


def _new_name(jobs: Path) -> str:
    """Return a name that comes after those of all runs, even where the clock was set back."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    taken = [order(path.name) for path in jobs.glob("*") if STAMP.fullmatch(path.name)]
    when, number = max(taken, default=("", 0))
    return now if when < now else f"{when}-{number + 1}"


def server_files(run: Path) -> RoundFiles:
    """Return the states of a run's server."""
    return RoundFiles(run / "server", of=f"{run.parent.name}/{run.name}/server")


def has_ended_a_round(run: Path) -> bool:
    """Say whether a run's server has a state or, should that be lost, whether its records or its run.json say so.

    Raises:
        FederationError: run.json is damaged, and nothing else says so.
    """
    if rounds_in(run / "server") or (run / "server" / RECORDS).is_file():
        return True
    return (run / DESCRIPTION).is_file() and bool(_description(run).get(ENDED))


def state_to_resume(run: Path, rounds: int) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """Return the server's newest intact state, see `RoundFiles.load`; None where no round has ended.

    Raises:
        FederationError: Rounds have ended, and the states after them are gone or damaged; or more than the job's
            ``rounds`` have ended.
    """
    try:
        found = server_files(run).load()
    except DamagedState as error:
        raise FederationError(str(error)) from error
    if found is None and has_ended_a_round(run):
        raise FederationError(
            f"{run}: rounds have ended, and the state after them is gone, server/round-*.safetensors; "
            "put it back to resume, or start a new run"
        )
    if found is not None and found[0] + 1 > rounds:
        raise FederationError(
            f"{run} has done {found[0] + 1} rounds and the job's 'rounds' is {rounds}; give at least as many to "
            "resume, or start a new run"
        )
    return found


def _description(run: Path) -> dict[str, Any]:
    """Return what a run's run.json says."""
    path = run / DESCRIPTION
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict) and isinstance(values.get("job"), dict):
            return values
        reason = "says nothing of a job"
    except FileNotFoundError:
        reason = "is missing"
    except (OSError, ValueError) as error:
        reason = f"is damaged ({error})"
    raise FederationError(f"{path} {reason}; put an intact copy there to resume, or start a new run")


def point_latest_to(folder: Path) -> None:
    """Let ``latest`` beside the run name it, for people and scripts."""
    beside = folder.with_name(f".latest.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder.name)
    os.replace(beside, folder.with_name(LATEST))


@contextmanager
def working_on(folder: Path, *, wait: float = 0.0, stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Let no other process go on with a run or remove it meanwhile.

    Args:
        folder: The run's.
        wait: Seconds that another process may take to end. A job's process outlives a server that was killed, and may
            still be about to end when the job is submitted again.
        stop: Asked while it waits; true ends the waiting.

    Raises:
        FederationError: Another one works on it.
    """
    with (folder / LOCK).open("a") as file:
        end, waits = time.monotonic() + wait, False
        while not try_lock(file):
            if time.monotonic() >= end or stop():
                raise FederationError(f"{folder}: another process works on this run; wait for its end")
            if not waits:
                logger.info("%s: another process works on this run; waiting for its end", folder)
            waits = True
            time.sleep(0.1)
        yield


def is_worked_on(folder: Path) -> bool:
    """Say whether a process works on a run now."""
    if not (folder / LOCK).is_file():
        return False
    try:
        with working_on(folder):
            return False
    except FederationError:
        return True


def leave_models(run: Path, sites: Sequence[str], to: Path) -> list[Path]:
    """Put a finished run's models where people look: ``<to>/<site>/`` and, for outsiders, ``<to>/server/``.

    They are the same files under a second name where the disk allows that, else copies.
    """
    models = [run / site / f"{name}.safetensors" for site in sites for name in ("model", "best")]
    models += sorted((run / "server").glob("model*.safetensors"))
    left = []
    for path in models:
        if path.is_file():
            left.append(to / path.relative_to(run))
            with atomically(left[-1]) as beside:
                _link_or_copy(path, beside)
    return left


def _link_or_copy(path: Path, to: Path) -> None:
    try:
        to.hardlink_to(path)
    except OSError:  # another disk, or one without links
        shutil.copyfile(path, to)


def change_description(folder: Path, **values: Any) -> bool:
    """Change values of a run's run.json, None removes one; return whether there is such a file."""
    path = folder / DESCRIPTION
    if not path.is_file():
        return False
    changed = {**_description(folder), **values}
    write_json(path, {key: value for key, value in changed.items() if value is not None})
    return True


def describe(job: Job, method: Method, sites: list[str], found: dict[str, Any]) -> dict[str, Any]:
    """Return what run.json says: job, method, sites, what enrolment found, and where the numbers come from."""
    from shared_components.federation.provenance import provenance

    return {
        "job": job.to_json(),
        "method": job.method,
        "said": {"label": method.about.label, "idea": method.about.idea, "paper": method.about.paper},
        "arguments": dict(job.arguments),
        "bundle": job.bundle,
        "rounds": job.rounds,
        "sites": sites,
        **found,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance(job),
    }
