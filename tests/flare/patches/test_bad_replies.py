"""No reply of a site ends a job or forges a line of a log."""

import os
from types import SimpleNamespace

import pytest
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.fed.server.server_command_agent import ServerCommandAgent
from nvflare.private.fed.server.server_commands import ServerCommandKey, SubmitUpdateCommand
from nvflare.private.fed.server.server_runner import ServerRunner

from shared_components.flare.exchange import read_reply
from shared_components.flare.patches.bad_replies import (
    LONGEST_WORD,
    sanitise,
    sanitise_submissions,
    survive_bad_messages,
)
from tests.flare.conftest import put_back

FATAL = ServerRunner.ABORT_RETURN_CODES
FORGED = "round\n[E:forged] all is well"


@pytest.fixture(autouse=True)
def flares_own(monkeypatch):
    put_back(monkeypatch, (cell, "_is_server_job_cell"))


def submission(name, event):
    made = DXO(DataKind.COLLECTION, data={}).to_shareable()
    made.set_header(FLContextKey.TASK_NAME, name)
    made.set_header(ReservedKey.AUDIT_EVENT_ID, event)
    return made


@pytest.fixture
def process():
    """Return a function that lets FLARE process a submission, and returns the arguments that reach its runner."""

    def run(data):
        data.set_peer_context(FLContext())
        data.set_header(ServerCommandKey.FL_CLIENT, SimpleNamespace(name="hospital-b"))
        came, context = [], FLContext()
        runner = SimpleNamespace(process_submission=lambda *arguments: came.append(arguments))
        context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
        callbacks = {}
        registered = SimpleNamespace(
            register_request_cb=lambda channel, topic, cb: callbacks.update({(channel, topic): cb})
        )
        agent = ServerCommandAgent(None, registered)
        agent._execute_command = lambda request: SubmitUpdateCommand().process(request.payload, context)
        sanitise_submissions(SimpleNamespace(server=SimpleNamespace(command_agent=agent)))
        callbacks[CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE](Message({}, data))
        return came[0]

    return run


def test_flare_has_three_codes_by_which_a_site_ends_the_job():
    """If an upgrade removes them, `sanitise_submissions` can go."""
    assert {ReturnCode.RUN_MISMATCH, ReturnCode.TASK_UNKNOWN, ReturnCode.UNSAFE_JOB} == set(FATAL)


@pytest.mark.parametrize("code", [*FATAL, 7, ["OK"], None])
def test_no_return_code_of_a_site_ends_the_job(process, code):
    reply = make_reply(ReturnCode.OK)
    reply.set_header(ReservedHeaderKey.RC, code)
    _, _, _, result, _ = process(reply)
    assert result.get_return_code() not in FATAL
    if code is not None:
        assert read_reply(result, "round") == "FLARE reports EXECUTION_EXCEPTION; the site's log has the reason"


@pytest.mark.parametrize("code", [ReturnCode.OK, ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_ABORTED])
def test_other_codes_and_the_payload_are_unchanged(process, code):
    reply = make_reply(code)
    reply["DXO"] = payload = {"x": [1, 2]}
    _, _, _, result, _ = process(reply)
    assert result is reply and result.get_return_code() == code and result["DXO"] is payload


def test_names_and_ids_are_short_lines(process):
    sent = submission(FORGED, FORGED + "x" * 10**5)
    sent.set_header(ReservedHeaderKey.COOKIE_JAR, {FLContextKey.TASK_ID: FORGED, "odd\n": ["a\nb"]})
    _, name, number, result, _ = process(sent)
    assert name == number == "round [E:forged] all is well"
    event = result.get_header(ReservedKey.AUDIT_EVENT_ID)
    assert event.isprintable() and len(event) == LONGEST_WORD
    assert result.get_cookie_jar() == {FLContextKey.TASK_ID: "round [E:forged] all is well", "odd": "['a\\nb']"}


def test_flares_own_ids_are_unchanged(process):
    task = "1fd0f9d4-8a3b-4a4e-9f0a-6f7bb3f3c1aa"
    sent = submission("round", task)
    sent.add_cookie(FLContextKey.TASK_ID, task)
    sent.add_cookie(ReservedHeaderKey.WORKFLOW, "federation")
    _, name, number, result, _ = process(sent)
    assert (name, number) == ("round", task) and result.get_cookie(ReservedHeaderKey.WORKFLOW) == "federation"
    assert result.get_header(ReservedKey.AUDIT_EVENT_ID) == task


@pytest.mark.parametrize("jar", ["a", 7, ["a"], {1: 2}])
def test_a_cookie_jar_of_another_kind_is_an_empty_one(jar):
    sent = Shareable()
    sent.set_header(ReservedHeaderKey.COOKIE_JAR, jar)
    sanitise(sent)
    assert sent.get_cookie(FLContextKey.TASK_ID) is None


def receive_garbage():
    """Let FLARE's own code read an update of a site, in the server's process of a job."""
    headers = {
        StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
        StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE,
        StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
    }
    passed = {"decode_pass_through_channels": set(), "decode_pass_through_topics": set()}
    no_cell = SimpleNamespace(**passed, get_fobs_context=lambda props: {})
    adapter = cell.Adapter(lambda request: None, SimpleNamespace(fqcn="server.0f1e"), no_cell)
    adapter.call(SimpleNamespace(headers=headers, result=lambda: b"garbage"))


@pytest.fixture
def server_of_a_job(monkeypatch):
    def ended(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ended)


def test_flare_by_itself_ends_the_process(server_of_a_job):
    with pytest.raises(SystemExit):
        receive_garbage()


def test_a_message_that_cannot_be_decoded_raises_and_the_process_lives(server_of_a_job):
    survive_bad_messages()
    with pytest.raises(RuntimeError, match="header"):
        receive_garbage()
