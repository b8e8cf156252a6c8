"""At a site, restrict the administration commands that the server may give, and the jobs that the site accepts.

A site of FLARE 2.9 obeys any command of the server, and consults its own `authorization.json` only if the message
requests it. With `sys.shell` a server could read any text file of a hospital, and with a path as a job's name it could
remove any folder. This file lists the permitted commands. The site consults its own file for each of them: with the
name and role that the server gives for a person's command, and with the certificate that has signed a job.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.utils.app_authz import AppAuthzService

from shared_components.common.sanitise import one_line
from shared_components.flare.deployment.app_files import JobFileError, check_app_zip
from shared_components.flare.patches.message_filters import Refusals
from shared_components.flare.patches.replace import replace

logger = logging.getLogger(__name__)

WITH_JOB = frozenset({TrainingTopic.DEPLOY, TrainingTopic.START_JOB})  # these messages describe the job
OF_JOBS = WITH_JOB | {TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.ABORT}
OF_PEOPLE = {
    TrainingTopic.CHECK_STATUS: AdminCommandNames.CHECK_STATUS,
    TrainingTopic.RESTART: AdminCommandNames.RESTART,
    TrainingTopic.SHUTDOWN: AdminCommandNames.SHUTDOWN,
}
"""Commands of administrators, with the right that each needs in the site's own `authorization.json`."""
PERSON = (RequestHeader.USER_NAME, RequestHeader.USER_ORG, RequestHeader.USER_ROLE)
SUPER = "super"  # a role to which FLARE allows everything, whatever a site's file contains
LONGEST_WORD = 200  # characters
_REFUSALS = Refusals(logger)


def restrict_commands() -> None:
    """Obey only the listed commands in this process, and accept only jobs of people who may submit jobs."""
    replace(FedAdminAgent, "_dispatch_request", _only_listed)
    replace(AppAuthzService, "authorize_app_info", _only_of_submitters)


def _only_listed(dispatch: Callable[..., CellMessage], agent: Any, request: CellMessage) -> CellMessage:
    problem = command_problem(request.payload, str(request.get_header(MessageHeaderKey.ORIGIN)))
    if problem is None:
        return dispatch(agent, request)
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
    person = _person(*(command.get_header(key, "") for key in PERSON))
    return f"nobody has the role {person.role!r}" if person.role == SUPER else None


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


def _person(*identity: Any) -> Person:
    return Person(*(one_line(word) for word in identity))


def _is_job_id(job: Any) -> bool:
    """Return whether this is a UUID like FLARE's ids: FLARE first removes the folder with this name."""
    try:
        return isinstance(job, str) and str(uuid.UUID(job)) == job
    except ValueError:
        return False


def _only_of_submitters(
    authorize: Callable, app_info, submitter_name, submitter_org, submitter_role, job_meta=None
) -> tuple[bool, str]:
    submitter = _person(submitter_name, submitter_org, submitter_role)
    context = AuthzContext(right=AdminCommandNames.SUBMIT_JOB, user=submitter, submitter=submitter)
    if submitter.role == SUPER or not AuthorizationService.authorize(context)[0]:
        problem = f"{one_line(submitter_name)} ({one_line(submitter_role)}) may not submit jobs here"
        _REFUSALS.log(f"a job is refused: {problem}")
        return False, problem
    return authorize(app_info, submitter_name, submitter_org, submitter_role, job_meta)
