"""No message makes a process connect to somebody else, and only its receiver ends a stream; FLARE lets both be."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from shared_components.flare.patches.peer_connections import keep_to_the_server

TARGET = "hospital-a.4d5c3f80"
CONNECT = """
import os, socket, sys

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from tests.flare.test_peers import invitation

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
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.ORIGIN: "hospital-b",
        MessageHeaderKey.FROM_CELL: "somebody",
        MessageHeaderKey.DESTINATION: "server",
        MessageHeaderKey.CHANNEL: "task",
        MessageHeaderKey.TOPIC: "heart_beat",
        MessageHeaderKey.CONN_URL: f"tcp://127.0.0.1:{port}",
    }
    return Message(headers, None)


@pytest.mark.parametrize(("whose", "seen"), [("bare", "connected"), ("mended", "alone")])
def test_a_message_does_not_make_a_process_connect_to_an_address(whose, seen):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended = subprocess.run(
        [sys.executable, "-c", CONNECT, whose, str(port)], capture_output=True, text=True, timeout=60
    )
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


def bare(task):
    """Return FLARE's own function, whoever has replaced it in this process."""
    return getattr(TxTask.handle_ack, "__wrapped__", TxTask.handle_ack).__get__(task)


ENDS = {StreamHeaderKey.ERROR_MSG: "I have not got it"}


def test_flare_lets_any_site_end_a_stream_to_another(task):
    bare(task)(acknowledgement("hospital-b.4d5c3f80", **ENDS))
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
