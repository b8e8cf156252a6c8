"""What an administrator does with jobs over FLARE's own session; whatever fails is one sentence.

A session is always closed: a process that leaves one open does not end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from shared_components.flare import console
from shared_components.flare.console import FAILED
from shared_components.flare.deployment.certificates import why_anothers, why_outside, why_refused
from shared_components.flare.deployment.kits import Kit, KitError, find_kit
from shared_components.flare.patches.late_connections import close_late_connections

PATIENCE = 10.0  # seconds for the first connection
EVERY = 2.0  # seconds between two looks at a job
A_SECOND = 1e6  # characters of a log, for each of which it is read less often
SENTENCES = {
    api_spec.AuthorizationError: "{refused}; the role in its certificate does not allow it",
    api_spec.AuthenticationError: "{refused}: {said}; the kit is of another federation, has expired, or was revoked",
    ConnectionError: "the server{at} cannot be reached; see that it runs, and that this machine may connect to it",
    TimeoutError: "the server{at} has not answered in time; see that it runs, and give the command again",
    api_spec.SessionClosed: "the session has ended ({said}); give the command again",
    api_spec.JobNotFound: "there is no job {job}; `surgfl job list` shows their ids",
    api_spec.JobNotDone: "job {job} has not ended; watch it, or stop it first",
    api_spec.InvalidJobDefinition: "the server refuses the job: {said}",
}
"""By what FLARE raises; NoConnection is a ConnectionError, SessionExpired a SessionClosed."""
STATES = {
    "SUBMITTED": "waiting",
    "APPROVED": "waiting",
    "DISPATCHED": "starting",
    "RUNNING": "running",
    "FINISHED:COMPLETED": "finished",
    "FINISHED:ABORTED": "stopped",
    "FINISHED:ABANDONED": "lost",
}
LOST = "lost"
"""The server ended while the job ran; FLARE calls it RUNNING for ever."""
ENDED = ("finished", "stopped", "failed", LOST)


class AdminError(ValueError):
    """What an administrator asked for cannot be; one sentence."""


@dataclass(frozen=True)
class Listed:
    """A job as the server knows it: what it is called, by whom and when it was submitted, and its state."""

    id: str
    name: str
    state: str
    submitter: str
    submitted: str

    @property
    def ended(self) -> bool:
        """Say whether nothing of it runs any more."""
        return self.state in ENDED


class Administrator:
    """An open session; use :func:`connect`."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self.name = session, name

    def submit(self, job: Path) -> str:
        """Submit a job folder; return FLARE's id of it."""
        with told(f"{self.name} may not submit a job"):
            return self._session.submit_job(str(job))

    def jobs(self) -> list[Listed]:
        """Return all jobs, in the order of their submission."""
        with told(f"{self.name} may not list jobs"):
            system = self._session.get_system_info()
            return [listed(meta, system) for meta in self._session.list_jobs(detailed=True)]

    def job(self, job: str) -> Listed:
        """Return a job."""
        with told(f"{self.name} may not look at job {job}", job):
            system = self._session.get_system_info()
            return listed(self._session.get_job_meta(job), system)

    def stop(self, job: str) -> None:
        """Stop a job that waits or runs.

        Raises:
            AdminError: It has ended already, and all else that can fail.
        """
        state = self.job(job).state
        if state in ENDED:
            raise AdminError(f"job {job} has ended already: {state}")
        with told(f"{self.name} may not stop job {job}", job):
            self._session.abort_job(job)

    def fetch(self, job: str, to: Path) -> Path:
        """Download an ended job's result; return its folder, ``to/<job>``.

        Raises:
            AdminError: The folder is there, or the job has not ended, and all else that can fail.
        """
        target = to / job
        if os.path.lexists(target):
            raise AdminError(f"{target}: is there already; give another folder, or move it away")
        if not self.job(job).ended:
            raise AdminError(f"job {job} has not ended; watch it, and fetch its result then")
        to.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{job}.", dir=to) as beside,
            told(f"{self.name} may not fetch the result of job {job}", job),
        ):
            found = Path(self._session.download_job_result(job, beside))
            if not found.is_dir():
                raise AdminError(f"job {job} has left no result; it ended before it began")
            shutil.move(found, target)
        return target

    def watch(self, job: str, *, every: float = EVERY) -> Iterator[str]:
        """Yield a job's state and its lines as they come, until it ends.

        They come from the server's log, which is read as a whole each time, so that a long one is read less often.
        """
        seen, state = 0, ""
        while True:
            now = self.job(job)
            log = self._log(job)
            lines = lines_of(log)
            if now.state != state and not now.ended:
                yield f"job {job} is {now.state}"
            yield from lines[seen:]
            seen, state = len(lines), now.state
            if now.ended:
                return
            time.sleep(max(every, len(log) / A_SECOND))

    def why(self, job: str) -> str:
        """Return the sentence that says why an ended job is no finished one; empty where nothing says it."""
        lines = [line for line in lines_of(self._log(job)) if line.startswith(FAILED)]
        if lines:
            return lines[-1].removeprefix(FAILED)
        with told(f"{self.name} may not look at job {job}", job):
            meta = self._session.get_job_meta(job)
        details = [str(one) for one in meta.get("job_deploy_detail") or [] if not str(one).endswith(": OK")]
        history = [str(one) for one in meta.get("schedule_history") or []]
        return "; ".join(details) or (history[-1] if history else "")

    def _log(self, job: str) -> str:
        """Return FLARE's records of a job at the server, also after its end; empty where there are none yet."""
        with told(f"{self.name} may not read a job's log (get_job_log in the server's authorization.json)", job):
            logs = self._session.get_job_logs(job, log_file_name=console.RECORDS)["logs"]
        return str(logs.get(console.SERVER) or "")


def lines_of(log: str) -> list[str]:
    """Return what the controller's console has written to FLARE's log of records, line by line."""
    found: list[str] = []
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the beginning of a log that FLARE has begun anew
            continue
        if isinstance(record, dict) and record.get("fullName") == console.__name__:
            found += str(record.get("message", "")).splitlines()
    return found


def listed(meta: Mapping[str, Any], system: api_spec.SystemInfo) -> Listed:
    """Return a job of FLARE's description and of what the server says of itself.

    What FLARE calls running is lost if it began before the server did, and none of the server's processes runs it.
    """
    identity, status = str(meta.get("job_id", "")), str(meta.get("status", ""))
    state = STATES.get(status, "failed")
    begun = _seconds(meta.get("start_time") or meta.get("submit_time_iso"))
    running = identity in {job.job_id for job in system.job_info}
    if state in ("starting", "running") and not running and begun < _seconds(system.server_info.start_time):
        state = LOST
    when = str(meta.get("submit_time_iso", ""))[:19].replace("T", " ")
    return Listed(identity, str(meta.get("name", "")), state, str(meta.get("submitter_name", "")), when)


def _seconds(when: Any) -> float:
    """Return a time of FLARE's, which is seconds or ISO text, in seconds; 0 where it is neither."""
    try:
        return float(when) if isinstance(when, int | float) else datetime.fromisoformat(when).timestamp()
    except (TypeError, ValueError):
        return 0.0


@contextlib.contextmanager
def connect(kit: Path, *, patience: float = PATIENCE) -> Iterator[Administrator]:
    """Log in with an administrator's startup kit, and close the session whatever happens.

    Raises:
        ValueError: It is no administrator's kit, its certificate does not hold, the server cannot be reached, or does
            not take the kit.
    """
    found = find_kit(kit)
    if found.part != "administrator":
        raise AdminError(f"{kit}: is the kit of a {found.part}; --admin names an administrator's")
    if why := why_outside(found):
        raise AdminError(f"{kit}: {why}")
    described = json.loads((found.folder / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
    name, where = described["username"], f"{described['host']}:{described['port']}"
    if why := why_anothers(found, name):
        raise AdminError(f"{kit}: {why}")
    close_late_connections()  # else the command may not end
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # FLARE's own words on every attempt to connect
    try:
        with told(f"the server at {where} does not let {name} in", where=where):
            with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
                session = _log_in(found, described, patience)
        try:
            yield Administrator(session, name)
        finally:
            with contextlib.redirect_stdout(None):
                session.close()
    finally:
        logging.disable(level)


def _log_in(kit: Kit, described: Mapping[str, Any], patience: float) -> Session:
    """Open a session; where the server cannot be reached since certificates do not hold, say which."""
    try:
        return new_secure_session(described["username"], str(kit.folder), timeout=patience, auto_login_max_tries=1)
    except ConnectionError as error:
        if why := why_refused(kit, described["host"], described["port"]):
            raise AdminError(f"{kit.folder}: {why}") from error
        raise


@contextlib.contextmanager
def told(refused: str, job: str = "", *, where: str = "") -> Iterator[None]:
    """Turn what FLARE raises into one sentence.

    Args:
        refused: Begins the sentence where a role does not allow it.
        job: Whose it is.
        where: Host and port of the server.
    """
    at = f" at {where}" if where else ""
    try:
        yield
    except (AdminError, KitError):
        raise
    except Exception as error:
        sentences = {kind: text for kind, text in SENTENCES.items() if isinstance(error, kind)}
        text = next(iter(sentences.values()), "FLARE refuses: {said}")
        raise AdminError(text.format(refused=refused, said=_line(error), job=job, at=at)) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
