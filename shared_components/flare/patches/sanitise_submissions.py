"""At the server: sanitise FLARE's own fields in a site's reply, so that they neither end the job nor forge log lines.

FLARE 2.9 ends a job for all where one site's answer has one of three return codes, whatever `min_sites` says, and
writes the task's name and ids, as the site gives them, into its log and into `audit.txt`, line breaks included.
"""

from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from shared_components.common.sanitise import one_line
from shared_components.flare.patches.replace import replace

SHA256 = "c2161f473673d2dcf080e5afb4317aca4b8ef95e49a7ea8e897ba6f7dfe5e8df"
LOGGED = (FLContextKey.TASK_NAME, ReservedKey.AUDIT_EVENT_ID)  # headers that FLARE writes into its logs
LONGEST_WORD = 100  # characters


def end_nothing() -> None:
    """Apply `tame` to every submission of a site, in this process."""
    from nvflare.private.fed.server.server_commands import SubmitUpdateCommand

    replace(SubmitUpdateCommand, "process", _tamed, sha256=SHA256)


def _tamed(process: Callable[..., Any]) -> Callable[..., Any]:
    def tamed(command: Any, data: Any, fl_ctx: FLContext) -> Any:
        if isinstance(data, Shareable):
            tame(data)
        return process(command, data, fl_ctx)

    return tamed


def tame(submission: Shareable) -> None:
    """Replace a return code that would end the job, and shorten names and ids to one line; keep everything else.

    The job's controller leaves out a site whose code is not ``OK``, and the others go on.
    """
    from nvflare.private.fed.server.server_runner import ServerRunner

    code = submission.get_return_code()
    if not isinstance(code, str) or code in ServerRunner.ABORT_RETURN_CODES:
        submission.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    for key in LOGGED:
        if (value := submission.get_header(key)) is not None:
            submission.set_header(key, one_line(value, LONGEST_WORD))
    cookies = submission.get_cookie_jar()
    if cookies is not None:
        items = cookies.items() if isinstance(cookies, dict) else ()
        clean = {one_line(key, LONGEST_WORD): one_line(value, LONGEST_WORD) for key, value in items}
        submission.set_header(ReservedHeaderKey.COOKIE_JAR, clean)
