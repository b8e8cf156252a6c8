"""A site obeys only listed commands that its own file allows; FLARE's own agent obeys any message of the server."""

import io
import uuid
import zipfile
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.utils import encode_payload
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.sec.authz import AuthorizationService, Authorizer
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.utils.decomposers import private_decomposers
from nvflare.security.security import COMMAND_CATEGORIES

from shared_components.flare.patches import connections, site_commands
from shared_components.flare.patches.message_filters import Refusals
from shared_components.flare.patches.site_commands import (
    OF_JOBS,
    OF_PEOPLE,
    WITH_JOB,
    command_problem,
    refuse_unlisted,
    restrict_commands,
)
from tests.flare.conftest import bare_cell, put_back

SECRET = "-----BEGIN PRIVATE KEY----- of hospital-a"
JOB, OTHER = str(uuid.UUID(int=7)), str(uuid.UUID(int=8))
CHIEF = {RequestHeader.USER_NAME: "chief@example.org", RequestHeader.USER_ORG: "hospital_a"}
CHIEF[RequestHeader.USER_ROLE] = "project_admin"
HEADERS = {
    "nothing asked": {},
    "no authorisation": {RequestHeader.REQUIRE_AUTHZ: "false", RequestHeader.ADMIN_COMMAND: "cat"},
    "a project_admin's": {RequestHeader.REQUIRE_AUTHZ: "true", RequestHeader.ADMIN_COMMAND: "cat", **CHIEF},
    "as another command": {RequestHeader.REQUIRE_AUTHZ: "true", RequestHeader.ADMIN_COMMAND: "check_status", **CHIEF},
    "super": {RequestHeader.REQUIRE_AUTHZ: "true", **CHIEF, RequestHeader.USER_ROLE: "super"},
}
POLICY = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": "any", "member": {"view": "any"},
        "lead": {"submit_job": "any", "view": "any", "operate": "o:site"},
    },
}  # fmt: skip
TOPICS = sorted({topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()})


@pytest.fixture
def agent(monkeypatch):
    """FLARE's agent of hospital-a as installed, whose file is the default one; commands but the shell's are noted."""
    put_back(monkeypatch, (CoreCell, "_process_received_msg"))
    monkeypatch.setattr(connections, "_CHECKS", {})
    monkeypatch.setattr(FLContext, "__enter__", lambda self: self, raising=False)
    monkeypatch.setattr(FLContext, "__exit__", lambda *_: None, raising=False)
    monkeypatch.setattr(site_commands, "_REFUSALS", Refusals(site_commands.logger))
    authorizer = Authorizer("hospital_a", COMMAND_CATEGORIES)
    assert not authorizer.load_policy(POLICY)
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    made = FedAdminAgent.__new__(FedAdminAgent)
    private_decomposers.register()
    made.cell = bare_cell(monkeypatch, "hospital-a")
    made.register_cell_cb()
    made.audit = []
    made.auditor = SimpleNamespace(add_event=lambda **named: made.audit.append(named))
    made.app_ctx = SimpleNamespace(new_context=FLContext, fire_event=lambda *_: None)
    made.seen = []
    noting = SimpleNamespace(process=lambda request, app_ctx: made.seen.append(request.topic))
    shell = next(one for one in ClientRequestProcessors.request_processors if SysCommandTopic.SHELL in one.get_topics())
    made.processors = {**dict.fromkeys(TOPICS, noting), SysCommandTopic.SHELL: shell}
    return made


def ask(agent, topic, body="", *, origin="server", **headers):
    """Return the text of the agent's answer to a message that its cell receives."""
    command = Message(topic, body)
    command.set_headers(headers)
    own = {
        MessageHeaderKey.MSG_TYPE: MessageType.REQ, MessageHeaderKey.REPLY_EXPECTED: True,
        MessageHeaderKey.CHANNEL: CellChannel.CLIENT_MAIN, MessageHeaderKey.TOPIC: "admin",
        MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.DESTINATION: "hospital-a",
    }  # fmt: skip
    answers = []
    agent.cell._send_reply = lambda reply, endpoint: answers.append(reply.payload.body)
    sent = CellMessage(own, command)
    encode_payload(sent)
    agent.cell.process_message(Endpoint(origin), None, 1, sent)
    return answers[0]


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_flare_gives_a_file_to_the_server_and_we_do_not(agent, tmp_path, headers, caplog):
    key = tmp_path / "client.key"
    key.write_text(SECRET)
    for command in ("cat", "head", "tail", "grep PRIVATE"):
        if headers in (HEADERS["nothing asked"], HEADERS["no authorisation"], HEADERS["super"]):
            flares = {k: v for k, v in headers.items() if k != RequestHeader.REQUIRE_AUTHZ}
            assert SECRET in ask(agent, SysCommandTopic.SHELL, f"{command} {key}", **flares), "FLARE's own"
    restrict_commands()
    for command in ("cat", "head", "tail", "grep PRIVATE", "ls"):
        answer = ask(agent, SysCommandTopic.SHELL, f"{command} {key}", **headers)
        assert SECRET not in answer and answer == "this site refuses it: no server needs the command sys.shell"
    assert caplog.text.count("a command of the server is refused: no server needs the command sys.shell") == 1


@pytest.mark.parametrize("topic", [one for one in TOPICS if one not in OF_JOBS | set(OF_PEOPLE)])
@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_every_other_command_of_flares_is_refused(agent, topic, headers):
    restrict_commands()
    assert "refuses it" in ask(agent, topic, "DEBUG", **{RequestHeader.JOB_ID: JOB, **headers})
    assert not agent.seen and not agent.audit


def test_flare_has_the_listed_commands_and_other_payloads_are_refused():
    assert OF_JOBS | set(OF_PEOPLE) <= set(TOPICS)
    assert {TrainingTopic.DELETE_RUN, SysCommandTopic.SHELL, TrainingTopic.CONFIGURE_JOB_LOG} <= set(TOPICS)
    for payload in (None, b"cat", {"topic": "train.abort"}, Message(["train.abort"], "")):
        assert command_problem(payload, "server") == "it is no command"


@pytest.mark.parametrize("topic", sorted(OF_JOBS))
def test_a_jobs_commands_pass_and_a_job_that_is_a_path_does_not(agent, topic):
    def described(job):
        return {RequestHeader.JOB_ID: job, RequestHeader.JOB_META: {"job_id": job}}

    restrict_commands()
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    body = buffer.getvalue() if topic == TrainingTopic.DEPLOY else ""
    assert ask(agent, topic, body, **described(JOB)) == "ok" and agent.seen == [topic]
    for job in ("..", "local", "../..", "/etc", f"{JOB}/..", JOB.upper().replace("0", "A"), f"{{{JOB}}}", 7, ["x"]):
        assert "which is no job's id" in ask(agent, topic, **described(job)), job
    if topic in WITH_JOB:
        assert "which is no job's id" in ask(agent, topic, **described(""))
        for meta in ({"job_id": OTHER}, {}, None, [JOB], "job_id"):
            headers = {RequestHeader.JOB_ID: JOB, RequestHeader.JOB_META: meta}
            assert "describes another" in ask(agent, topic, **headers)
    assert agent.seen == [topic]


@pytest.mark.parametrize(("topic", "right"), OF_PEOPLE.items())
def test_a_persons_command_needs_a_right_in_the_sites_own_file_whatever_the_message_contains(agent, topic, right):
    """FLARE obeys it without a name if the message requests no authorisation."""
    assert ask(agent, topic) == "ok" and agent.seen.pop() == topic
    restrict_commands()
    for headers in ({}, {RequestHeader.REQUIRE_AUTHZ: "false"}, {RequestHeader.ADMIN_COMMAND: "nothing"}):
        assert ask(agent, topic, **headers) != "ok", headers
    assert not agent.seen
    assert ask(agent, topic, **CHIEF) == "ok"
    member = {**CHIEF, RequestHeader.USER_ROLE: "member"}
    assert (ask(agent, topic, **member) == "ok") == (right == "check_status")
    for role in ("super", " Super"):
        assert "nobody has the role 'super'" in ask(agent, topic, **{**CHIEF, RequestHeader.USER_ROLE: role})


def test_only_a_sites_own_process_of_a_job_may_report_its_status(agent):
    restrict_commands()
    topic = TrainingTopic.NOTIFY_JOB_STATUS
    assert ask(agent, topic, origin=f"hospital-a.{JOB}") == "ok"
    assert "refuses it" in ask(agent, topic) and "refuses it" in ask(agent, topic, origin=f"server.{JOB}")


def test_flare_writes_only_short_lines_into_the_audit(agent):
    restrict_commands()
    forged = "chief\n[E:forged] " + 1000 * "x"
    ask(agent, TrainingTopic.ABORT, **{RequestHeader.JOB_ID: JOB, RequestHeader.USER_NAME: forged})
    (event,) = agent.audit
    assert event["user"].isprintable() and len(event["user"]) <= 200


def test_a_cell_that_would_not_ask_the_filter_processes_nothing(agent):
    restrict_commands()
    assert ask(agent, TrainingTopic.CHECK_STATUS, **CHIEF) == "ok" and ask(agent, "a command") != "ok"
    agent.cell.in_req_filter_reg = SimpleNamespace(append=lambda *_: None, find=lambda *_: [])
    with pytest.raises(IndexError):  # no answer
        ask(agent, TrainingTopic.CHECK_STATUS, **CHIEF)
    assert agent.seen == [TrainingTopic.CHECK_STATUS]


def test_flares_own_filters_and_other_requests_are_unchanged(agent):
    restrict_commands()
    seen = []
    agent.cell.add_incoming_request_filter("*", "*", lambda request: seen.append(request.payload.topic))
    for _ in range(2):
        assert ask(agent, TrainingTopic.CHECK_STATUS, **CHIEF) == "ok"
    assert seen == 2 * [TrainingTopic.CHECK_STATUS] and len(agent.cell.in_req_filter_reg.find("*", "*")) == 2
    assert refuse_unlisted(CellMessage({MessageHeaderKey.CHANNEL: "task"}, "anything")) is None
