"""What a site says beside its answer forges nothing, and no message makes a process connect to somebody else."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.fed.server.server_commands import ServerCommandKey, SubmitUpdateCommand
from nvflare.private.fed.server.server_runner import ServerRunner

from shared_components.flare.patches.peer_connections import keep_to_the_server
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.patches.sanitise_submissions import LONGEST_WORD, end_nothing, tame
from shared_components.flare.site_tasks import read_reply

FATAL = ServerRunner.ABORT_RETURN_CODES
FORGED = "round\n[E:forged] all is well"


def submission(name, event):
    made = DXO(DataKind.COLLECTION, data={}).to_shareable()
    made.set_header(FLContextKey.TASK_NAME, name)
    made.set_header(ReservedKey.AUDIT_EVENT_ID, event)
    return made


@pytest.fixture
def process(monkeypatch):
    """Return a function that lets FLARE's command process a submission and says with what it went on."""
    monkeypatch.setattr(SubmitUpdateCommand, "process", SubmitUpdateCommand.process)

    def run(data):
        data.set_peer_context(FLContext())
        data.set_header(ServerCommandKey.FL_CLIENT, SimpleNamespace(name="hospital-b"))
        came, context = [], FLContext()
        runner = SimpleNamespace(process_submission=lambda *arguments: came.append(arguments))
        context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
        SubmitUpdateCommand().process(data, context)
        return came[0]

    return run


def test_flare_has_three_codes_by_which_a_site_ends_the_job():
    """If an upgrade takes them away, `sanitise_submissions` may go."""
    assert {ReturnCode.RUN_MISMATCH, ReturnCode.TASK_UNKNOWN, ReturnCode.UNSAFE_JOB} == set(FATAL)


@pytest.mark.parametrize("code", [*FATAL, 7, ["OK"], None])
def test_no_return_code_of_a_site_ends_the_job(process, code):
    end_nothing()
    end_nothing()  # a second time changes nothing
    reply = make_reply(ReturnCode.OK)
    reply.set_header(ReservedHeaderKey.RC, code)
    _, _, _, result, _ = process(reply)
    assert result.get_return_code() not in FATAL
    if code is not None:
        assert read_reply(result, "round") == "FLARE reports EXECUTION_EXCEPTION; the site's log says why"


@pytest.mark.parametrize("code", [ReturnCode.OK, ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_ABORTED])
def test_any_other_code_stays_and_so_does_what_is_sent(process, code):
    end_nothing()
    reply = make_reply(code)
    reply["DXO"] = kept = {"x": [1, 2]}
    _, _, _, result, _ = process(reply)
    assert result is reply and result.get_return_code() == code and result["DXO"] is kept


def test_names_and_ids_are_short_lines(process):
    end_nothing()
    sent = submission(FORGED, FORGED + "x" * 10**5)
    sent.set_header(ReservedHeaderKey.COOKIE_JAR, {FLContextKey.TASK_ID: FORGED, "odd\n": ["a\nb"]})
    _, name, number, result, _ = process(sent)
    assert name == number == "round [E:forged] all is well"
    event = result.get_header(ReservedKey.AUDIT_EVENT_ID)
    assert event.isprintable() and len(event) == LONGEST_WORD
    assert result.get_cookie_jar() == {FLContextKey.TASK_ID: "round [E:forged] all is well", "odd": "['a\\nb']"}


def test_what_flare_gave_comes_back_as_it_was(process):
    end_nothing()
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
    tame(sent)
    assert sent.get_cookie(FLContextKey.TASK_ID) is None


# ---- connections and streams

TARGET = "hospital-a.4d5c3f80"
CONNECT = """
import os, socket, sys

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from tests.flare.patches.test_from_sites import invitation

if sys.argv[1] == "mended":
    from shared_components.flare.patches.peer_connections import keep_to_the_server
    keep_to_the_server()
listener = socket.create_server(("127.0.0.1", 0))
listener.settimeout(10 if sys.argv[1] == "bare" else 1)
cell = CoreCell("server", f"tcp://127.0.0.1:{sys.argv[2]}", secure=False, credentials={})
cell.start()
cell.process_message(Endpoint("hospital-b"), None, 1, invitation(listener.getsockname()[1]))
try:
    listener.accept()
    print("connected", flush=True)
except TimeoutError:
    print("alone", flush=True)
os._exit(0)
"""


def invitation(port):
    """Return a heartbeat that names an address, in the way of one that somebody has handed on."""
    headers = {
        MessageHeaderKey.MSG_TYPE: MessageType.REQ, MessageHeaderKey.ORIGIN: "hospital-b",
        MessageHeaderKey.FROM_CELL: "somebody", MessageHeaderKey.DESTINATION: "server",
        MessageHeaderKey.CHANNEL: "task", MessageHeaderKey.TOPIC: "heart_beat",
        MessageHeaderKey.CONN_URL: f"tcp://127.0.0.1:{port}",
    }  # fmt: skip
    return Message(headers, None)


@pytest.mark.parametrize(("whose", "seen"), [("bare", "connected"), ("mended", "alone")])
def test_a_message_does_not_make_a_process_connect_to_an_address(whose, seen):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", CONNECT, whose, str(port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == [seen], ended.stderr[-2000:]
    said = "hospital-b asks to be connected to at tcp://127.0.0.1:"
    assert (said in ended.stderr) == (whose == "mended"), ended.stderr[-2000:]


def acknowledgement(origin, **headers):
    return Message({MessageHeaderKey.ORIGIN: origin, **headers}, None)


@pytest.fixture
def task(monkeypatch):
    """A stream to hospital-a, half sent; nothing of it goes anywhere."""
    monkeypatch.setattr(TxTask, "handle_ack", TxTask.handle_ack)  # put back what the test replaces
    cell = SimpleNamespace(fire_and_forget=lambda *_, **__: {})
    stream = SimpleNamespace(get_headers=lambda: {}, get_size=lambda: 100, close=lambda: None)
    return TxTask(cell, 10, "channel", "topic", TARGET, {}, stream, False, False, True)


ENDS = {StreamHeaderKey.ERROR_MSG: "I have not got it"}


def test_flare_lets_any_site_end_a_stream_to_another(task):
    own = getattr(TxTask.handle_ack, REPLACES, TxTask.handle_ack)  # whoever has replaced it in this process
    own(task, acknowledgement("hospital-b.4d5c3f80", **ENDS))
    assert task.stopped


def test_only_the_receiver_of_a_stream_ends_it(task, caplog):
    keep_to_the_server()
    keep_to_the_server()  # a second time changes nothing
    for origin in ("hospital-b.4d5c3f80", "hospital-a", "server", None):
        task.handle_ack(acknowledgement(origin, **ENDS))
        task.handle_ack(acknowledgement(origin, **{StreamHeaderKey.OFFSET: 10**9}))
        assert not task.stopped and task.offset_ack == 0, origin
    assert "hospital-b.4d5c3f80 says what has come of a stream to hospital-a.4d5c3f80: refused" in caplog.text
    task.handle_ack(acknowledgement(TARGET, **{StreamHeaderKey.OFFSET: 60}))
    assert task.offset_ack == 60 and not task.stopped
    task.handle_ack(acknowledgement(TARGET, **ENDS))
    assert task.stopped
