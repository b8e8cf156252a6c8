"""At a site, restrict the administration commands that the server may give.

A site of FLARE 2.9 obeys any command of the server, and consults its own `authorization.json` only if the message
requests it. With `sys.shell` a server could read any text file of a hospital, and with a path as a job's name it could
remove any folder. This file lists the permitted commands. For a person's command, the site consults its own file with
the name and role that the server gives; `job_configuration` consults it with the certificate that has signed a job.
"""

import logging
import uuid
from collections.abc import Mapping
from threading import Lock
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.sec.authz import Person
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic, new_cell_message

from shared_components.common.sanitise import one_line
from shared_components.flare.deployment.app_files import JobFileError, check_app_zip
from shared_components.flare.patches.connections import add_check
from shared_components.flare.patches.job_configuration import SUPER
from shared_components.flare.patches.message_filters import Refusals
from shared_components.flare.patches.replace import expect

logger = logging.getLogger(__name__)

WITH_JOB = frozenset({TrainingTopic.DEPLOY, TrainingTopic.START_JOB})  # these messages describe the job
OF_JOBS = WITH_JOB | {TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.ABORT}
OF_PEOPLE = {
    TrainingTopic.CHECK_STATUS: AdminCommandNames.CHECK_STATUS,
    TrainingTopic.RESTART: AdminCommandNames.RESTART,
    TrainingTopic.SHUTDOWN: AdminCommandNames.SHUTDOWN,
}
"""Commands of administrators, with the right that each needs in the site's own `authorization.json`."""
LONGEST_WORD = 200  # characters
_REFUSALS = Refusals(logger)
_ADDING = Lock()


def restrict_commands() -> None:
    """Obey only the listed commands in this process."""
    expect(CoreCell, "_process_request")  # asks a cell's filters before it calls FLARE's handler
    add_check("commands", _is_filtered)


def _is_filtered(cell: Any, _connection: Any, message: CellMessage) -> bool:
    """Add the filter of commands to a cell before its first message; return False if the cell would not ask it."""
    with _ADDING:
        if not _asks_filter(cell, message):
            cell.add_incoming_request_filter(channel="*", topic="*", cb=refuse_unlisted)
    return _asks_filter(cell, message)


def _asks_filter(cell: Any, message: CellMessage) -> bool:
    filters = cell.in_req_filter_reg.find(CellChannel.CLIENT_MAIN, message.get_header(MessageHeaderKey.TOPIC))
    return any(one.cb is refuse_unlisted for one in filters or ())


def refuse_unlisted(request: CellMessage) -> CellMessage | None:
    """Return the answer to a command that is refused; None for other requests and permitted commands."""
    if request.get_header(MessageHeaderKey.CHANNEL) != CellChannel.CLIENT_MAIN:
        return None
    problem = command_problem(request.payload, str(request.get_header(MessageHeaderKey.ORIGIN)))
    if problem is None:
        return None
    _REFUSALS.log(f"a command of the server is refused: {problem}")
    return new_cell_message({}, error_reply(f"this site refuses it: {problem}"))


def command_problem(command: Any, origin: str) -> str | None:
    """Return why a site refuses a command; None if it obeys, provided that its `authorization.json` allows it.

    Headers that FLARE uses for authorisation or logs are corrected in place. `message_filters.SiteBoundary` has checked
    the sender's name ``origin``.
    """
    if not isinstance(command, Message) or not isinstance(command.topic, str):
        return "it is no command"
    if command.topic == TrainingTopic.NOTIFY_JOB_STATUS and FQCN.get_root(origin) != FQCN.ROOT_SERVER:
        return None  # from the site's own process of a job
    if command.topic not in OF_JOBS and command.topic not in OF_PEOPLE:
        return f"no server needs the command {one_line(command.topic)}"
    for key in (RequestHeader.USER_NAME, ConnProps.EVENT_ID):  # FLARE writes these headers into audit.txt
        command.set_header(key, one_line(command.get_header(key, ""), LONGEST_WORD))
    if (right := OF_PEOPLE.get(command.topic)) is None:
        return _job_problem(command)
    command.set_headers({RequestHeader.ADMIN_COMMAND: right, RequestHeader.REQUIRE_AUTHZ: "true"})
    role = Person("", "", one_line(command.get_header(RequestHeader.USER_ROLE, ""))).role
    return f"nobody has the role {role!r}" if role == SUPER else None


def _job_problem(command: Message) -> str | None:
    job = command.get_header(RequestHeader.JOB_ID, "")
    meta = command.get_header(RequestHeader.JOB_META, {})
    if not _is_job_id(job) and (job or command.topic in WITH_JOB):
        return f"{one_line(command.topic)} names {one_line(job)!r}, which is no job's id"
    if command.topic not in WITH_JOB:
        return None
    if not isinstance(meta, Mapping) or meta.get(JobMetaKey.JOB_ID.value) != job:
        return f"{one_line(command.topic)} of job {job} describes another job"
    return _why_no_app(command.body) if command.topic == TrainingTopic.DEPLOY else None


def _why_no_app(body: Any) -> str | None:
    """Return why the app that a server deploys is refused, before FLARE unpacks it to verify its signatures."""
    try:
        check_app_zip(body)
    except JobFileError as error:
        return str(error)
    return None


def _is_job_id(job: Any) -> bool:
    """Return whether this is a UUID like FLARE's ids: FLARE first removes the folder with this name."""
    try:
        return isinstance(job, str) and str(uuid.UUID(job)) == job
    except ValueError:
        return False
