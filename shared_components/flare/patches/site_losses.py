"""At the server, report the loss of a site to the running job instead of ending the job for all sites.

FLARE 2.9 ends a job for all sites if one site cannot begin it, or reports that its process of the job has failed. It
does not inform the job of a site that did not accept the job or was restarted. It fails a job that has succeeded at the
server if a site falls silent before it reports its own outcome.

`LostSites` in the server's `local/resources.json` passes the reports to the job's controller, which counts the site as
absent and continues if `min_sites` are left. It uses a file, so that no message can declare a site lost.
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
from nvflare.private import defs
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.message_send import ClientReply
from nvflare.private.fed.server.server_engine import ServerEngine

from shared_components.common.atomic import NotWritten, write_json
from shared_components.common.sanitise import one_line
from shared_components.flare.patches.replace import replace

logger = logging.getLogger(__name__)

LOST = "lost-sites.json"  # lost sites and reasons, in FLARE's folder of a job at the server
BEGUN = "OK"  # a site's answer when it has begun
AGAIN = "it was restarted, and FLARE gives no site a running job a second time"
DIED = "its process of the job died; its own log has the reason"
REASONS = {
    JobReturnCode.UNSAFE_COMPONENT: "it refuses a class of the job, which is not on its allow list",
    JobReturnCode.CONFIG_ERROR: "the job's configuration is wrong for it; its own log has the reason",
    JobReturnCode.INFRASTRUCTURE_ERROR: "its process of the job could not begin; its own log has the reason",
    JobReturnCode.ABORTED: "its process of the job was stopped there",
}
_WRITING = Lock()


def handle_reports(engine: Any) -> None:
    """Handle the reports of sites instead of FLARE, without ending any job."""
    engine.server.cell.register_request_cb(
        channel=defs.CellChannel.SERVER_MAIN,
        topic=defs.CellChannelTopic.REPORT_JOB_FAILURE,
        cb=lambda request: take_report(engine, request),
    )
    replace(FederatedServer, "_resolve_missing_client_outcome", keep_outcome)
    replace(ServerEngine, "start_client_job", record_failed_starts)


def record_undeployed(fl_ctx: FLContext) -> None:
    """Record for a job's controller which sites FLARE could not give the job."""
    reasons: dict[str, str] = {}
    for line in fl_ctx.get_prop(FLContextKey.JOB_DEPLOY_DETAIL) or []:
        site, _, answer = str(line).partition(": ")
        if answer != BEGUN:
            reasons[site] = f"it did not accept the job: {_reason(answer)}"
    record_lost(fl_ctx.get_engine(), str(fl_ctx.get_prop(FLContextKey.JOB_RUN_NUMBER)), reasons)


def record_failed_starts(begin: Callable[..., list[ClientReply]], engine: Any, job: Any, sites: Any, fl_ctx: FLContext):
    """Start a job at its sites by FLARE's function; record sites that cannot begin, and hide them from FLARE."""
    replies = list(begin(engine, job, sites, fl_ctx))
    reasons = {}
    for reply in replies:
        answer = reply.reply.body if reply.reply else ""
        if isinstance(answer, str) and answer.startswith(defs.ERROR_MSG_PREFIX):
            reasons[reply.client_name] = f"it could not begin the job: {_reason(answer)}"
            reply.reply.body = BEGUN
    for site in sorted(set(sites) - {reply.client_name for reply in replies}):
        reasons[site] = "it was gone when the job began"
        replies.append(ClientReply("", site, None, AdminMessage("", BEGUN)))
    record_lost(fl_ctx.get_engine(), job.job_id, reasons)
    return replies


def _reason(answer: str) -> str:
    return one_line(answer.removeprefix(f"{defs.ERROR_MSG_PREFIX}: "), 300)


def take_report(engine: Any, request: Message) -> Message:
    """Handle a site's report of the end of its process of a job; record a failure if the job still runs.

    FLARE's own handler still checks the sender, and whether the job is one of this site's jobs.
    """
    payload, job, code = request.payload, "", JobReturnCode.SUCCESS
    if isinstance(payload, dict):
        job, code = str(payload.get(defs.JobFailureMsgKey.JOB_ID)), payload.get(defs.JobFailureMsgKey.CODE, code)
        code = code if isinstance(code, int) else JobReturnCode.EXCEPTION
        harmless = {defs.JobFailureMsgKey.JOB_ID: job, defs.JobFailureMsgKey.CODE: JobReturnCode.SUCCESS}
        request.payload = {**payload, **harmless}
    client = engine.client_manager.clients.get(request.get_header(defs.CellMessageHeaderKeys.TOKEN))
    pending = client is not None and engine.job_runner.is_client_outcome_pending(job, client.name)
    reply = engine.server.process_job_failure(request)
    if pending and code != JobReturnCode.SUCCESS and job in engine.run_processes:
        record_lost(engine, job, {client.name: REASONS.get(code, DIED)})
    return reply


def keep_outcome(_: object, server: Any, client: Client, job: str, reason: str) -> None:
    """Keep the outcome of a job at the server if a site will not report its own outcome any more."""
    engine = server.engine
    if job not in engine.run_processes and engine.job_runner.is_client_outcome_pending(job, client.name):
        logger.warning("job %s has ended, and %s has not reported its outcome: %s", job, client.name, reason)
    engine.job_runner.resolve_client_outcome(job, client.name)


def restarted_sites(jobs: Mapping[str, Mapping[str, Any]], clients: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield each running job with each of its sites whose process was replaced since it received the job."""
    tokens = {client.name: client.token for client in clients}
    for job, process in list(jobs.items()):
        for token, client in (process.get(RunProcessKey.PARTICIPANTS) or {}).items():
            if tokens.get(client.name, token) != token:
                yield job, client.name


def record_lost(engine: Any, job: str, reasons: Mapping[str, str]) -> None:
    """Record lost sites and reasons for a job's controller; the job's end does not wait for the sites' outcomes."""
    for site, reason in reasons.items():
        logger.warning("job %s has lost %s: %s", job, site, reason)
        engine.job_runner.resolve_client_outcome(job, site)
    folder = Path(engine.get_workspace().get_run_dir(job))
    if not reasons or not folder.is_dir():
        return
    try:
        with _WRITING:
            write_json(folder / LOST, {**reasons, **read_lost(folder)})
    except NotWritten as error:
        logger.error("job %s is not informed: %s", job, error)


def read_lost(folder: Path) -> dict[str, str]:
    """Return a job's lost sites with the first reason of each, from FLARE's folder of the job at the server."""
    path = folder / LOST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
