"""At the server: the loss of a site is reported to the running job, and does not end it for all.

FLARE 2.9 ends a job for all where one site cannot begin it, and as soon as one reports that its own process of the job
has failed, even if the job can do without that site. It does not inform the job of a site that did not accept it, nor
of one that was restarted, which never gets that job back. And it fails a job that has succeeded at the server if a
site falls silent before it has reported how the job ended there.

`LostSites` in the server's `local/resources.json` handles the reports in FLARE's place and passes them to the job's
controller, which counts the site as absent and goes on if `min_sites` are left. It passes them by a file, so that no
message to the job's process can declare a site lost.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import (
    ERROR_MSG_PREFIX,
    CellChannel,
    CellChannelTopic,
    CellMessageHeaderKeys,
    JobFailureMsgKey,
)
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.message_send import ClientReply
from nvflare.private.fed.server.server_engine import ServerEngine

from shared_components.common.atomic import NotWritten, write_json
from shared_components.common.sanitise import one_line
from shared_components.flare.patches.replace import replace

SHA256_OUTCOME = "5432b3e7ada6a4df4d896c25c069e51e636df9042a23360ee0310fb4298e8ae8"
SHA256_START = "d7e1faa61233aed26ec9f102258e1abd4d8273d82555a03b8c3543ba733a461d"

logger = logging.getLogger(__name__)

LOST = "lost-sites.json"  # in FLARE's folder of a job at the server: sites that do not work on it, and why
SENTENCE = 300  # characters of a site's own reason
BEGUN = "OK"  # a site's answer when it has begun
AGAIN = "it was started again, and FLARE gives no site a running job a second time"
REASONS = {
    JobReturnCode.UNSAFE_COMPONENT: "it refuses a class of the job, which is not on its allow list",
    JobReturnCode.CONFIG_ERROR: "the job's configuration is wrong for it; its own log says why",
    JobReturnCode.INFRASTRUCTURE_ERROR: "its process of the job could not begin; its own log says why",
    JobReturnCode.ABORTED: "its process of the job was stopped there",
}
DIED = "its process of the job died; its own log says why"
_WRITING = Lock()


def judge_in_flares_place(engine: Any) -> None:
    """Handle the reports of sites in FLARE's place, without ending any job."""
    engine.server.cell.register_request_cb(
        channel=CellChannel.SERVER_MAIN,
        topic=CellChannelTopic.REPORT_JOB_FAILURE,
        cb=lambda request: take_report(engine, request),
    )
    replace(FederatedServer, "_resolve_missing_client_outcome", lambda _: wait_no_longer, sha256=SHA256_OUTCOME)
    replace(ServerEngine, "start_client_job", beginning_at_sites, sha256=SHA256_START)


def note_not_given(fl_ctx: FLContext) -> None:
    """Record for a job's controller which sites FLARE could not give the job."""
    found: dict[str, str] = {}
    for line in fl_ctx.get_prop(FLContextKey.JOB_DEPLOY_DETAIL) or []:
        site, _, answer = str(line).partition(": ")
        if answer != BEGUN:
            found[site] = f"it did not take the job: {_reason(answer)}"
    lose(fl_ctx.get_engine(), str(fl_ctx.get_prop(FLContextKey.JOB_RUN_NUMBER)), found)


def beginning_at_sites(begin: Callable[..., list[ClientReply]]) -> Callable[..., list[ClientReply]]:
    """Wrap FLARE's function that begins a job at its sites: record who cannot begin, and hide it from FLARE."""

    def begin_at_sites(engine: Any, job: Any, sites: Any, fl_ctx: FLContext) -> list[ClientReply]:
        replies = list(begin(engine, job, sites, fl_ctx))
        found = _hide_who_cannot(replies, sites)
        lose(fl_ctx.get_engine(), job.job_id, found)
        return replies

    return begin_at_sites


def _hide_who_cannot(replies: list[ClientReply], sites: Any) -> dict[str, str]:
    """Replace each failed or missing answer by a good one; return the sites concerned, and why."""
    found = {}
    for one in replies:
        answer = one.reply.body if one.reply else ""
        if isinstance(answer, str) and answer.startswith(ERROR_MSG_PREFIX):
            found[one.client_name] = f"it could not begin the job: {_reason(answer)}"
            one.reply.body = BEGUN
    for site in sorted(set(sites) - {one.client_name for one in replies}):
        found[site] = "it was gone when the job began"
        replies.append(ClientReply("", site, None, AdminMessage("", BEGUN)))
    return found


def _reason(answer: str) -> str:
    return one_line(answer.removeprefix(f"{ERROR_MSG_PREFIX}: "), SENTENCE)


def take_report(engine: Any, request: Message) -> Message:
    """Handle a site's report of how its process of a job has ended; a failure is recorded if the job still runs.

    FLARE's own handler still checks the report: its sender, and whether the job is one of this site's.
    """
    payload, job, code = request.payload, "", JobReturnCode.SUCCESS
    if isinstance(payload, dict):
        job, code = str(payload.get(JobFailureMsgKey.JOB_ID)), payload.get(JobFailureMsgKey.CODE, code)
        code = code if isinstance(code, int) else JobReturnCode.EXCEPTION
        harmless = {JobFailureMsgKey.JOB_ID: job, JobFailureMsgKey.CODE: JobReturnCode.SUCCESS}
        request.payload = {**payload, **harmless}
    client = engine.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
    pending = client is not None and engine.job_runner.is_client_outcome_pending(job, client.name)
    reply = engine.server.process_job_failure(request)
    if pending and code != JobReturnCode.SUCCESS and job in engine.run_processes:
        lose(engine, job, {client.name: REASONS.get(code, DIED)})
    return reply


def wait_no_longer(server: Any, client: Client, job: str, reason: str) -> None:
    """Keep the outcome that a job has at the server when a site will not report its own any more."""
    engine = server.engine
    if job not in engine.run_processes and engine.job_runner.is_client_outcome_pending(job, client.name):
        logger.warning("job %s has ended, and %s has not said how there: %s", job, client.name, reason)
    engine.job_runner.resolve_client_outcome(job, client.name)


def started_again(jobs: Mapping[str, Mapping[str, Any]], clients: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield running jobs with each of their sites whose present process is not the one that was given the job."""
    tokens = {client.name: client.token for client in clients}
    for job, process in list(jobs.items()):
        for token, client in (process.get(RunProcessKey.PARTICIPANTS) or {}).items():
            if tokens.get(client.name, token) != token:
                yield job, client.name


def lose(engine: Any, job: str, found: Mapping[str, str]) -> None:
    """Record for a job's controller which sites are lost, and why; its end does not wait for their outcomes."""
    for site, reason in found.items():
        logger.warning("job %s has lost %s: %s", job, site, reason)
        engine.job_runner.resolve_client_outcome(job, site)
    folder = Path(engine.get_workspace().get_run_dir(job))
    if not found or not folder.is_dir():
        return
    try:
        with _WRITING:
            write_json(folder / LOST, {**found, **read_lost(folder)})
    except NotWritten as error:
        logger.error("job %s is not told: %s", job, error)


def read_lost(folder: Path) -> dict[str, str]:
    """Return which sites a job has lost, and the first reason of each, from FLARE's folder of the job at the server."""
    path = folder / LOST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
