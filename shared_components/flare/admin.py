"""An administrator's commands on jobs, over FLARE's own session; every failure is one sentence.

A session is always closed: a process that leaves one open does not end.
"""

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
from shared_components.flare.deployment.certificates import owners, why_anothers, why_outside, why_refused
from shared_components.flare.deployment.kits import Kit, KitError, find_kit
from shared_components.flare.patches.downloads import keep_in_place
from shared_components.flare.patches.late_connections import close_late_connections

PATIENCE = 10.0  # seconds for the first connection
EVERY = 2.0  # seconds between two readings of a job's log
A_SECOND = 1e6  # characters of a log that lengthen this interval by a second
SENTENCES = {
    api_spec.AuthorizationError: "{refused}; the role in its certificate does not allow it",
    api_spec.AuthenticationError: "{refused}: {error}; the kit is of another federation, has expired, or was revoked",
    ConnectionError: "the server{at} cannot be reached; see that it runs, and that this machine may connect to it",
    TimeoutError: "the server{at} has not answered in time; see that it runs, and give the command again",
    api_spec.SessionClosed: "the session has ended ({error}); give the command again",
    api_spec.JobNotFound: "there is no job {job}; `surgfl job list` shows their ids",
    api_spec.JobNotDone: "job {job} has not ended; watch it, or stop it first",
    api_spec.InvalidJobDefinition: "the server refuses the job: {error}",
}
"""By FLARE's exceptions; NoConnection is a ConnectionError, SessionExpired a SessionClosed."""
STATES = {
    "SUBMITTED": "waiting",
    "APPROVED": "waiting",
    "DISPATCHED": "starting",
    "RUNNING": "running",
    "FINISHED:COMPLETED": "finished",
    "FINISHED:ABORTED": "stopped",
    "FINISHED:ABANDONED": "lost",
}
LOST = "lost"  # the server ended while the job ran; FLARE shows it as RUNNING for ever
ENDED = ("finished", "stopped", "failed", LOST)


class AdminError(ValueError):
    """An administrator's command failed; the message is one sentence."""


@dataclass(frozen=True)
class Listed:
    """A job in the server's list."""

    id: str
    name: str
    state: str
    submitter: str
    submitted: str

    @property
    def ended(self) -> bool:
        """Whether the job has ended, in whatever way."""
        return self.state in ENDED


class Administrator:
    """An open session; use :func:`connect`."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self.name = session, name

    def submit(self, job: Path) -> str:
        """Submit a job folder; return its id."""
        with explain_errors(f"{self.name} may not submit a job"):
            return self._session.submit_job(str(job))

    def jobs(self) -> list[Listed]:
        """Return all jobs, in the order of their submission."""
        with explain_errors(f"{self.name} may not list jobs"):
            system = self._session.get_system_info()
            return [listed(meta, system) for meta in self._session.list_jobs(detailed=True)]

    def job(self, job: str) -> Listed:
        """Return one job."""
        with explain_errors(f"{self.name} may not look at job {job}", job):
            system = self._session.get_system_info()
            return listed(self._session.get_job_meta(job), system)

    def stop(self, job: str) -> None:
        """Stop a job that waits or runs; raise AdminError if it has ended already."""
        state = self.job(job).state
        if state in ENDED:
            raise AdminError(f"job {job} has ended already: {state}")
        with explain_errors(f"{self.name} may not stop job {job}", job):
            self._session.abort_job(job)

    def fetch(self, job: str, to: Path) -> Path:
        """Download an ended job's result; return its folder, ``to/<job>``, which must not exist yet."""
        target = to / job
        if os.path.lexists(target):
            raise AdminError(f"{target}: is there already; give another folder, or move it away")
        if not self.job(job).ended:
            raise AdminError(f"job {job} has not ended; watch it, and fetch its result then")
        to.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{job}.", dir=to) as beside,
            explain_errors(f"{self.name} may not fetch the result of job {job}", job),
        ):
            found = Path(self._session.download_job_result(job, beside))
            if not found.is_dir():
                raise AdminError(f"job {job} has left no result; it ended before it began")
            shutil.move(found, target)
        return target

    def watch(self, job: str, *, every: float = EVERY) -> Iterator[str]:
        """Yield a job's state and new lines of its log until it ends.

        The server's log is read as a whole each time, and a long one therefore less often.
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
        """Return why an ended job did not finish; empty if unknown."""
        lines = [line for line in lines_of(self._log(job)) if line.startswith(FAILED)]
        if lines:
            return lines[-1].removeprefix(FAILED)
        with explain_errors(f"{self.name} may not look at job {job}", job):
            meta = self._session.get_job_meta(job)
        details = [str(one) for one in meta.get("job_deploy_detail") or [] if not str(one).endswith(": OK")]
        history = [str(one) for one in meta.get("schedule_history") or []]
        return "; ".join(details) or (history[-1] if history else "")

    def _log(self, job: str) -> str:
        with explain_errors(
            f"{self.name} may not read a job's log (get_job_log in the server's authorization.json)", job
        ):
            logs = self._session.get_job_logs(job, log_file_name=console.RECORDS)["logs"]
        return str(logs.get(console.SERVER) or "")


def lines_of(log: str) -> list[str]:
    """Return the lines that the controller's console has written to FLARE's log of JSON records."""
    found: list[str] = []
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # a line cut by log rotation
            continue
        if isinstance(record, dict) and record.get("fullName") == console.__name__:
            found += str(record.get("message", "")).splitlines()
    return found


def listed(meta: Mapping[str, Any], system: api_spec.SystemInfo) -> Listed:
    """Convert FLARE's description of a job.

    A job that FLARE calls running is lost if it began before the server did and no process of the server runs it.
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
    try:
        return float(when) if isinstance(when, int | float) else datetime.fromisoformat(when).timestamp()
    except (TypeError, ValueError):
        return 0.0


@contextlib.contextmanager
def connect(kit: Path, *, patience: float = PATIENCE) -> Iterator[Administrator]:
    """Log in with an administrator's startup kit; the session is closed when the block ends.

    Raises:
        ValueError: It is no administrator's kit, its certificate is not valid, the server cannot be reached, or it
            rejects the kit.
    """
    found = find_kit(kit)
    if found.part != "administrator":
        raise AdminError(f"{kit}: is the kit of a {found.part}; --admin names an administrator's")
    if why := why_outside(found):
        raise AdminError(f"{kit}: {why}")
    described = json.loads((found.folder / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
    name = described["username"] or ", ".join(owners(found))  # kits of `nvflare poc` leave the name to the certificate
    where = f"{described['host']}:{described['port']}"
    if why := why_anothers(found, name):
        raise AdminError(f"{kit}: {why}")
    close_late_connections()  # else the command may not end
    keep_in_place()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # FLARE logs every attempt to connect
    try:
        with explain_errors(f"the server at {where} does not let {name} in", where=where):
            with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
                session = _log_in(found, name, described, patience)
        try:
            yield Administrator(session, name)
        finally:
            with contextlib.redirect_stdout(None):
                session.close()
    finally:
        logging.disable(level)


def _log_in(kit: Kit, name: str, described: Mapping[str, Any], patience: float) -> Session:
    """Open a session; if the server cannot be reached because a certificate is rejected, name that certificate."""
    try:
        return new_secure_session(name, str(kit.folder), timeout=patience, auto_login_max_tries=1)
    except ConnectionError as error:
        if why := why_refused(kit, described["host"], described["port"]):
            raise AdminError(f"{kit.folder}: {why}") from error
        raise


@contextlib.contextmanager
def explain_errors(refused: str, job: str = "", *, where: str = "") -> Iterator[None]:
    """Convert FLARE's exceptions to AdminError; ``refused`` begins the sentence of a missing right.

    Sentences name the job's id and the server's host and port where these are given.
    """
    at = f" at {where}" if where else ""
    try:
        yield
    except (AdminError, KitError):
        raise
    except Exception as error:
        sentences = {kind: text for kind, text in SENTENCES.items() if isinstance(error, kind)}
        text = next(iter(sentences.values()), "FLARE refuses: {error}")
        text_of_error = " ".join(str(error).split())[:300] or type(error).__name__
        raise AdminError(text.format(refused=refused, error=text_of_error, job=job, at=at)) from error
