"""Run an administrator's commands on jobs over FLARE's session; every failure becomes one sentence."""

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session

from shared_components.flare import console
from shared_components.flare.deployment import certificates
from shared_components.flare.deployment.kits import Kit, KitError, find_kit
from shared_components.flare.patches.connections import close_late_connections
from shared_components.flare.patches.downloads import open_session

LOG_SPEED = 1e6  # characters of a log that lengthen the interval between two readings by a second
SENTENCES = {
    api_spec.AuthorizationError: "{refused}; the role in its certificate does not allow it",
    api_spec.AuthenticationError: "{refused}: {error}; the kit is of another federation, has expired, or was revoked",
    ConnectionError: "the server{at} cannot be reached; check that it runs, and that this machine may connect to it",
    TimeoutError: "the server{at} has not answered in time; check that it runs, and repeat the command",
    api_spec.SessionClosed: "the session has ended ({error}); repeat the command",
    api_spec.JobNotFound: "there is no job {job}; `surgfl job list` shows their ids",
    api_spec.JobNotDone: "job {job} has not ended; watch it, or stop it first",
    api_spec.InvalidJobDefinition: "the server refuses the job: {error}",
}
"""Messages for FLARE's exceptions; NoConnection is a ConnectionError, SessionExpired a SessionClosed."""
LOST = "lost"  # the server ended while the job ran; FLARE reports the job as RUNNING for ever
STATES = {
    "SUBMITTED": "waiting", "APPROVED": "waiting", "DISPATCHED": "starting", "RUNNING": "running",
    "FINISHED:COMPLETED": "finished", "FINISHED:ABORTED": "stopped", "FINISHED:ABANDONED": LOST,
}  # fmt: skip


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
        return self.state in ("finished", "stopped", "failed", LOST)


class Administrator:
    """An open session, made by :func:`connect`."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self.name = session, name

    def submit(self, job: Path) -> str:
        """Submit a job folder; return the job's id."""
        with explain_errors(f"{self.name} may not submit a job"):
            return self._session.submit_job(str(job))

    def jobs(self) -> list[Listed]:
        """Return all jobs, in the order of their submission."""
        with explain_errors(f"{self.name} may not list jobs"):
            system = self._session.get_system_info()
            return [listed(meta, system) for meta in self._session.list_jobs(detailed=True)]

    def job(self, job: str) -> Listed:
        with explain_errors(f"{self.name} may not look at job {job}", job):
            system = self._session.get_system_info()
            return listed(self._session.get_job_meta(job), system)

    def stop(self, job: str) -> None:
        """Stop a waiting or running job; raise AdminError if it has ended already."""
        if (current := self.job(job)).ended:
            raise AdminError(f"job {job} has ended already: {current.state}")
        with explain_errors(f"{self.name} may not stop job {job}", job):
            self._session.abort_job(job)

    def fetch(self, job: str, to: Path) -> Path:
        """Download an ended job's result; return its folder, ``to/<job>``, which must not exist yet."""
        target = to / job
        if os.path.lexists(target):
            raise AdminError(f"{target}: exists already; give another folder, or move it away")
        if not self.job(job).ended:
            raise AdminError(f"job {job} has not ended; watch it, and fetch its result then")
        to.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{job}.", dir=to) as temporary,
            explain_errors(f"{self.name} may not fetch the result of job {job}", job),
        ):
            if not (result := Path(self._session.download_job_result(job, temporary))).is_dir():
                raise AdminError(f"job {job} has left no result; it ended before it began")
            shutil.move(result, target)
        return target

    def watch(self, job: str, *, every: float = 2.0) -> Iterator[str]:
        """Yield a job's state and the new lines of its log until the job ends; a long log is read less often."""
        seen, state = 0, ""
        while True:
            current = self.job(job)
            log = self._log(job)
            lines = lines_of(log)
            if current.state != state and not current.ended:
                yield f"job {job} is {current.state}"
            yield from lines[seen:]
            seen, state = len(lines), current.state
            if current.ended:
                return
            time.sleep(max(every, len(log) / LOG_SPEED))

    def why(self, job: str) -> str:
        """Return why an ended job did not finish; empty if unknown."""
        lines = [line for line in lines_of(self._log(job)) if line.startswith(console.FAILED)]
        if lines:
            return lines[-1].removeprefix(console.FAILED)
        with explain_errors(f"{self.name} may not look at job {job}", job):
            meta = self._session.get_job_meta(job)
        details = [str(detail) for detail in meta.get("job_deploy_detail") or [] if not str(detail).endswith(": OK")]
        history = [str(entry) for entry in meta.get("schedule_history") or []]
        return "; ".join(details) or (history[-1] if history else "")

    def _log(self, job: str) -> str:
        right = "get_job_log in the server's authorization.json"
        with explain_errors(f"{self.name} may not read a job's log ({right})", job):
            logs = self._session.get_job_logs(job, log_file_name=console.RECORDS)["logs"]
        return str(logs.get(console.SERVER) or "")


def lines_of(log: str) -> list[str]:
    """Return the lines that the controller's console has written to FLARE's log of JSON records."""
    lines: list[str] = []
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # a line cut by log rotation
            continue
        if isinstance(record, dict) and record.get("fullName") == console.__name__:
            lines += str(record.get("message", "")).splitlines()
    return lines


def listed(meta: Mapping[str, Any], system: api_spec.SystemInfo) -> Listed:
    """Convert FLARE's description of a job.

    A job that FLARE reports as running is lost if it began before the server and no process of the server runs it.
    """
    identity, status = str(meta.get("job_id", "")), str(meta.get("status", ""))
    state = STATES.get(status, "failed")
    begun = _seconds(meta.get("start_time") or meta.get("submit_time_iso"))
    running = identity in {job.job_id for job in system.job_info}
    if state in ("starting", "running") and not running and begun < _seconds(system.server_info.start_time):
        state = LOST
    submitted = str(meta.get("submit_time_iso", ""))[:19].replace("T", " ")
    return Listed(identity, str(meta.get("name", "")), state, str(meta.get("submitter_name", "")), submitted)


def _seconds(when: Any) -> float:
    try:
        return float(when) if isinstance(when, int | float) else datetime.fromisoformat(when).timestamp()
    except (TypeError, ValueError):
        return 0.0


@contextmanager
def connect(kit: Path) -> Iterator[Administrator]:
    """Log in with an administrator's startup kit, and close the session when the block ends.

    A process with an open session does not end.

    ValueError: the folder is no administrator's kit, its certificate is not valid, the server cannot be reached, or the
    server rejects the kit.
    """
    own = find_kit(kit)
    if own.part != "administrator":
        raise AdminError(f"{kit}: is the kit of a {own.part}; --admin needs an administrator's kit")
    if problem := certificates.certificate_problem(own):
        raise AdminError(f"{kit}: {problem}")
    described = json.loads((own.folder / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
    # kits of `nvflare poc` leave the name to the certificate
    name = described["username"] or ", ".join(certificates.owners(own))
    if problem := certificates.owner_problem(own, name):
        raise AdminError(f"{kit}: {problem}")
    close_late_connections()  # else the command may not end
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # FLARE logs every attempt to connect
    address = f"{described['host']}:{described['port']}"
    try:
        with explain_errors(f"the server at {address} does not let {name} in", address=address):
            with redirect_stdout(None), redirect_stderr(None):
                session = _log_in(own, name, described)
        try:
            yield Administrator(session, name)
        finally:
            with redirect_stdout(None):
                session.close()
    finally:
        logging.disable(level)


def _log_in(kit: Kit, name: str, described: Mapping[str, Any]) -> Session:
    """Open a session; if the reason of a failure is a rejected certificate, name the certificate."""
    try:
        return open_session(name, kit.folder, timeout=10.0)
    except ConnectionError as error:
        if problem := certificates.handshake_problem(kit, described["host"], described["port"]):
            raise AdminError(f"{kit.folder}: {problem}") from error
        raise


@contextmanager
def explain_errors(refused: str, job: str = "", *, address: str = "") -> Iterator[None]:
    """Convert FLARE's exceptions to AdminError; ``refused`` begins the sentence of a missing right."""
    at = f" at {address}" if address else ""
    try:
        yield
    except (AdminError, KitError):
        raise
    except Exception as error:
        text = next((text for kind, text in SENTENCES.items() if isinstance(error, kind)), "FLARE refuses: {error}")
        cause = " ".join(str(error).split())[:300] or type(error).__name__
        raise AdminError(text.format(refused=refused, error=cause, job=job, at=at)) from error
