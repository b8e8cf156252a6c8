"""Let no site's reply end a job, in the server's process of the job.

FLARE 2.9 ends a job for all sites, whatever `min_sites` is, if one site's reply has one of three return codes. It calls
`os._exit` if one site's tensors do not arrive or cannot be decoded, or if a site rejects a message as too large.
Without this exit, FLARE raises and logs the error, the site tries again, and a dead site counts as absent after the
timeouts.

FLARE also writes the task's name and ids from the reply into its log and `audit.txt`, including line breaks.
"""

from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandNames
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.fuel.f3.message import Message
from nvflare.private.fed.server.server_command_agent import ServerCommandAgent

from shared_components.common.sanitise import one_line
from shared_components.flare.patches.replace import expect, replace

LONGEST_WORD = 100  # characters of a name or id


def survive_bad_messages() -> None:
    """Keep this process alive if a message cannot be decoded."""
    replace(cell, "_is_server_job_cell", lambda _, my_info: False)


def sanitise_submissions(engine: Any) -> None:
    """Apply `sanitise` to every reply of a site before the server's process of the job handles it."""
    expect(ServerCommandAgent, "start")  # registers the handler of all commands
    agent = engine.server.command_agent

    def handle(request: Message) -> Message:
        if isinstance(request.payload, Shareable):
            sanitise(request.payload)
        return agent.execute_command(request)

    agent.cell.register_request_cb(
        channel=CellChannel.SERVER_COMMAND, topic=ServerCommandNames.SUBMIT_UPDATE, cb=handle
    )


def sanitise(submission: Shareable) -> None:
    """Replace a return code that would end the job, and shorten names and ids to one line; keep the rest.

    The job's controller counts a site whose code is not ``OK`` as absent.
    """
    from nvflare.private.fed.server.server_runner import ServerRunner

    code = submission.get_return_code()
    if not isinstance(code, str) or code in ServerRunner.ABORT_RETURN_CODES:
        submission.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    for key in (FLContextKey.TASK_NAME, ReservedKey.AUDIT_EVENT_ID):
        if (value := submission.get_header(key)) is not None:
            submission.set_header(key, one_line(value, LONGEST_WORD))
    cookies = submission.get_cookie_jar()
    if cookies is not None:
        items = cookies.items() if isinstance(cookies, dict) else ()
        clean = {one_line(key, LONGEST_WORD): one_line(value, LONGEST_WORD) for key, value in items}
        submission.set_header(ReservedHeaderKey.COOKIE_JAR, clean)
