"""Folders of runs: create a run, choose a run to resume, lock it, describe it in run.json."""

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
from shared_components.common.counted import counted
from shared_components.core.method import Method
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.messages.job import LATEST
from shared_components.federation.runs.store import RECORDS, Check, DamagedState, RoundFiles, rounds_in

logger = logging.getLogger(__name__)

DESCRIPTION, LOCK = "run.json", "run.lock"
ENDED = "rounds_ended"  # key of run.json, also needed if the server's folder is lost
ENROLLED = "enrolled.json"  # in a site's folder: the job of the site's enrolment
SUBMISSIONS = "submissions.json"  # FLARE's ids of the jobs that worked on a run, oldest first
STAMP = re.compile(r"\d{8}-\d{6}(-\d+)?")
OUTLIVES = 120.0  # most seconds that a site's process of a job lives longer than its server
MAY_CHANGE = frozenset(
    {"rounds", "validate_every", "checkpoint_every", "min_sites", "grace_seconds", "longest_wait_seconds"}
)
"""Settings that may change when a job is resumed."""
_REMEDY = "to resume, or start a new run"


def open_run(job: Job, root: Path, *, resume: bool | str) -> Path:
    """Return the folder of the run to resume, or of a new run.

    ``resume`` selects the newest run, which the link ``latest`` names. A text (``latest``, the name of a run, or
    FLARE's id of a job) selects a run that must exist.

    FederationError: the run had other settings, its run.json is missing or damaged, the newest run is unknown, or no
    run has that name.
    """
    jobs = root / job.name
    run = chosen_run(jobs, resume)
    if run is None:
        folder = jobs / _new_name(jobs)
        folder.mkdir(parents=True)
        return folder
    description = read_description(run)
    if unknown := sorted({*description["job"]} - {*job.to_json()}):
        begun = f"began with surgfl {description.get('version', 'of another version')}"
        raise FederationError(f"{run} {begun}, and this version has no setting {unknown[0]!r}; install a newer version")
    if changed := changed_settings(description["job"], job):
        settings = ", ".join(changed)
        raise FederationError(f"{run} ran with other settings of {settings}; put them back {_REMEDY}")
    return run


def chosen_run(jobs: Path, resume: bool | str) -> Path | None:
    """Return the run of a job to resume, see `open_run`; FederationError if a named run has ended no round."""
    if not isinstance(resume, str):
        return newest_run(jobs) if resume else None
    if resume == LATEST:
        run = newest_run(jobs)
    else:
        runs = [path.parent for path in jobs.glob(f"[0-9]*/{DESCRIPTION}")]
        run = next((run for run in runs if resume == run.name or resume in submissions(run)), None)
    if run is None or not has_ended_a_round(run):
        problem = f"{jobs} has no run {resume!r} with a finished round"
        raise FederationError(f"{problem}; submit the job without resume to start a new run")
    return run


def split_resume(resume: bool | str) -> tuple[bool | str, int | None]:
    """Split ``RUN@ROUNDS`` into the run and the number of rounds after which it goes on; None: the newest state."""
    name, mark, rounds = resume.rpartition("@") if isinstance(resume, str) else (resume, "", "")
    if not mark:
        return resume, None
    if not (name and rounds.isdecimal() and int(rounds)):
        raise FederationError(f"resume is {resume!r}; write a run and a number of its rounds, such as latest@20")
    return name, int(rounds)


def submissions(run: Path) -> list[str]:
    """Return FLARE's ids of the jobs that worked on a run, oldest first."""
    path = run / SUBMISSIONS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def note_submission(run: Path, job_id: str) -> None:
    """Record FLARE's id of the job that works on a run now."""
    write_json(run / SUBMISSIONS, [*submissions(run), job_id])


def changed_settings(before: Mapping[str, Any], job: Job) -> list[str]:
    """Return the settings, such as ``training.seed``, that differ from the run's, except `MAY_CHANGE`."""
    now = job.to_json()
    old, new = (json.loads(json.dumps(values)) for values in (now | Job.defaults() | dict(before), now))
    changed: list[str] = []
    for key in (key for key in new if key not in MAY_CHANGE and new[key] != old[key]):
        pair = new[key], old[key]
        inner = sorted(set().union(*pair)) if all(isinstance(value, dict) for value in pair) else []
        changed += [f"{key}.{name}" for name in inner if pair[0].get(name) != pair[1].get(name)] or [key]
    return changed


def newest_run(jobs: Path) -> Path | None:
    """Return the run that ``latest`` names, whatever the names of the folders; None if it has ended no round.

    FederationError: ``latest`` is no link to a run, or missing although there are several runs.
    """
    latest, runs = jobs / LATEST, [path for path in jobs.glob("[0-9]*") if has_ended_a_round(path)]
    if latest.is_symlink():
        newest = jobs / Path(os.readlink(latest)).name
        if not newest.is_dir():
            raise FederationError(f"{latest} names {newest.name}, which is gone; put it back {_REMEDY}")
        return newest if has_ended_a_round(newest) else None
    if latest.exists() or len(runs) > 1:
        remedy = "make it one to resume (ln -sfn RUN latest), or start a new run"
        raise FederationError(f"{latest} is no link to the newest run; {remedy}")
    return runs[0] if runs else None


def order(name: str) -> tuple[str, int]:
    """Return the sort key of a run's name: its time, and its number among the runs of that second."""
    day, time, *number = name.split("-")
    return f"{day}-{time}", int(number[0]) if number else 0


def _new_name(jobs: Path) -> str:
    """Return a name after the names of all runs, even if the clock was set back."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    taken = [order(path.name) for path in jobs.glob("*") if STAMP.fullmatch(path.name)]
    when, number = max(taken, default=("", 0))
    return now if when < now else f"{when}-{number + 1}"


def server_files(run: Path, *, every: int = 0) -> RoundFiles:
    """Return the state files of a run's server, see `RoundFiles`."""
    return RoundFiles(run / "server", of=f"{run.parent.name}/{run.name}/server", every=every)


def has_ended_a_round(run: Path) -> bool:
    """Return whether a round has ended, by the server's states, records or run.json (FederationError if damaged)."""
    if rounds_in(run / "server") or (run / "server" / RECORDS).is_file():
        return True
    return (run / DESCRIPTION).is_file() and bool(read_description(run).get(ENDED))


def state_to_resume(
    run: Path, rounds: int, *, after: int | None = None, check: Check = lambda values: None
) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """Return the server's newest intact state, see `RoundFiles.load`, or the state ``after`` this many rounds.

    Return None if no round has ended. FederationError: the states are gone or damaged, or more rounds have ended than
    the job has.
    """
    files = server_files(run)
    try:
        state = files.load(before=after, check=check)
    except DamagedState as error:
        raise FederationError(str(error)) from error
    if after is not None and (state is None or state[0] + 1 != after):
        known = ", ".join(str(round + 1) for round in files.rounds()) or "none"
        raise FederationError(f"{run} has no intact state after {counted(after, 'round')}; it has states after {known}")
    if state is None and has_ended_a_round(run):
        lost = "rounds have ended, and the state after them is gone, server/round-*.safetensors"
        raise FederationError(f"{run}: {lost}; put it back {_REMEDY}")
    if state is not None and state[0] + 1 > rounds:
        done = counted(state[0] + 1, "round")
        problem = f"{run} has done {done} and the job's 'rounds' is {rounds}"
        raise FederationError(f"{problem}; give at least as many {_REMEDY}")
    return state


def read_description(run: Path) -> dict[str, Any]:
    """Return the content of a run's run.json; FederationError if it is missing or damaged."""
    path = run / DESCRIPTION
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict) and isinstance(values.get("job"), dict):
            return values
        reason = "does not describe a job"
    except FileNotFoundError:
        reason = "is missing"
    except (OSError, ValueError) as error:
        reason = f"is damaged ({error})"
    raise FederationError(f"{path} {reason}; put an intact copy there {_REMEDY}")


def point_latest_to(folder: Path) -> None:
    """Point the link ``latest`` beside a run to the run."""
    beside = folder.with_name(f".latest.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder.name)
    os.replace(beside, folder.with_name(LATEST))


@contextmanager
def lock_run(folder: Path, *, wait: float = 0.0, stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Lock a run, so that no other process continues or removes it.

    Wait ``wait`` seconds, or until ``stop`` returns True, for another process, such as a site's process of a server
    that was killed; then raise FederationError.
    """
    with (folder / LOCK).open("a", encoding="utf-8") as file:
        end, waits = time.monotonic() + wait, False
        while not try_lock(file):
            if time.monotonic() >= end or stop():
                raise FederationError(f"{folder}: another process works on this run; wait for its end")
            if not waits:
                logger.info("%s: another process works on this run; waiting for its end", folder)
            waits = True
            time.sleep(0.1)
        yield


def is_locked(folder: Path) -> bool:
    """Return whether a process works on a run now."""
    if not (folder / LOCK).is_file():
        return False
    try:
        with lock_run(folder):
            return False
    except FederationError:
        return True


def link_models(run: Path, sites: Sequence[str], to: Path) -> list[Path]:
    """Link a run's models to ``<to>/<site>/`` and ``<to>/server/``, or copy them if the disk has no hard links."""
    models = [run / site / f"{name}.safetensors" for site in sites for name in ("model", "best")]
    models += sorted((run / "server").glob("model*.safetensors"))
    targets = []
    for path in (path for path in models if path.is_file()):
        targets.append(to / path.relative_to(run))
        with atomically(targets[-1]) as beside:
            try:
                beside.hardlink_to(path)
            except OSError:  # another disk, or a disk without links
                shutil.copyfile(path, beside)
    return targets


def change_description(folder: Path, **values: Any) -> bool:
    """Change values in a run's run.json (None removes a value); return whether the file exists."""
    path = folder / DESCRIPTION
    if not path.is_file():
        return False
    changed = {**read_description(folder), **values}
    write_json(path, {key: value for key, value in changed.items() if value is not None})
    return True


def describe(job: Job, method: Method, sites: list[str], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the content of run.json: job, method, sites, ``facts`` of the enrolment, and provenance."""
    from shared_components.federation.runs.provenance import provenance

    said = {key: getattr(method.about, key) for key in ("label", "idea", "paper")}
    settings = {"bundle": job.bundle, "rounds": job.rounds, "sites": sites}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"job": job.to_json(), "method": job.method, "said": said, "arguments": dict(job.arguments)}
    return {**about, **settings, **facts, "started": started, **provenance(job)}
