"""Connections and streams: FLARE's own behaviour first, then the behaviour with the replacements."""

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.drivers.driver_manager import DriverManager
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode
from nvflare.fuel.f3.streaming import byte_streamer, stream_utils
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer, TxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, StreamHeaderKey

from shared_components.flare.patches import connections
from shared_components.flare.patches.connections import (
    ClosesLate,
    close_late_connections,
    number_streams,
    restrict_connections,
)
from tests.flare.conftest import bare_cell, put_back


@pytest.fixture(autouse=True)
def flares_own(monkeypatch):
    put_back(monkeypatch, (CoreCell, "_process_received_msg"), (byte_streamer, "gen_stream_id"))
    monkeypatch.setattr(connections, "_CHECKS", {})


# ---- numbers of streams


class Turn:
    """A lock that runs the other thread's turn when it is released."""

    def __init__(self, other):
        self.other = other

    def __enter__(self):
        return self

    def __exit__(self, *error):
        other, self.other = self.other, None
        if other is not None:
            other()


def test_flare_gives_two_streams_one_number(monkeypatch):
    ids = []
    monkeypatch.setattr(stream_utils, "lock", Turn(lambda: ids.append(stream_utils.gen_stream_id())))
    ids.append(stream_utils.gen_stream_id())
    assert len(ids) == 2 and len(set(ids)) == 1


def test_every_stream_has_its_own_number():
    before = byte_streamer.gen_stream_id()
    number_streams()
    numbers = byte_streamer.gen_stream_id
    number_streams()  # a second time changes nothing
    assert byte_streamer.gen_stream_id is numbers
    ids: list[int] = []
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(lambda: ids.extend([byte_streamer.gen_stream_id() for _ in range(2000)]))
    assert len(set(ids)) == len(ids) == 8000 and min(ids) > before


# ---- connections that are established too late


PARAMS = [part.value for part in (DriverParams.SCHEME, DriverParams.HOST, DriverParams.PORT, DriverParams.PATH)]


class Late(TcpDriver):
    """A driver whose connection becomes known only after its connector has ended."""

    def __init__(self):
        super().__init__()
        self.connecting, self.closed = threading.Event(), threading.Event()

    def add_connection(self, conn):
        self.connecting.set()
        assert self.closed.wait(30)
        super().add_connection(conn)

    def shutdown(self):
        super().shutdown()
        self.closed.set()


class LateAndClosed(ClosesLate, Late):
    """The same driver, as it is registered in FLARE."""


@pytest.fixture
def stopping(request):
    """Return a function that ends a manager whose connection is late; it returns the thread that waits for the end."""
    listening, driver, manager = socket.create_server(("127.0.0.1", 0)), request.param(), ConnManager(Endpoint("here"))
    thread = threading.Thread(target=manager.stop, daemon=True)

    def stop():
        params = dict(zip(PARAMS, ("tcp", *listening.getsockname(), ""), strict=True))
        manager.add_connector(driver, params, Mode.ACTIVE)
        manager.start()
        assert driver.connecting.wait(30)
        thread.start()
        return thread

    yield stop
    listening.close()
    driver.close_all()
    thread.join(30)


@pytest.mark.parametrize("stopping", [Late], indirect=True)
def test_flare_itself_waits_forever_for_a_late_connection(stopping):
    """When this fails, FLARE closes such connections itself, and the replacement can go."""
    thread = stopping()
    thread.join(3)
    assert thread.is_alive()


@pytest.mark.parametrize("stopping", [LateAndClosed], indirect=True)
def test_a_late_connection_is_closed_and_the_end_comes(stopping):
    thread = stopping()
    thread.join(30)
    assert not thread.is_alive()


def test_every_driver_of_flare_closes_late_connections(monkeypatch):
    manager = DriverManager()
    monkeypatch.setattr(communicator, "driver_mgr", manager)
    for _ in range(2):  # a second time changes nothing
        close_late_connections()
        assert {"grpc", "grpcs", "tcp", "stcp", "http", "https"} <= manager.drivers.keys()
        for scheme, driver in manager.drivers.items():
            assert driver.mro()[1:2] == [ClosesLate] and driver.mro()[2] is not ClosesLate, scheme
            assert driver().connections == {} and scheme in driver.supported_transports()


# ---- addresses in messages, and acknowledgements


TARGET = "hospital-a.4d5c3f80"
CONNECT = """
import os, socket, sys

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from tests.flare.patches.test_connections import invitation

if sys.argv[1] == "restricted":
    from shared_components.flare.patches.connections import restrict_connections
    restrict_connections()
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
    """Return a forwarded heartbeat that names an address."""
    headers = {
        MessageHeaderKey.MSG_TYPE: MessageType.REQ, MessageHeaderKey.ORIGIN: "hospital-b",
        MessageHeaderKey.FROM_CELL: "somebody", MessageHeaderKey.DESTINATION: "server",
        MessageHeaderKey.CHANNEL: "task", MessageHeaderKey.TOPIC: "heart_beat",
        MessageHeaderKey.CONN_URL: f"tcp://127.0.0.1:{port}",
    }  # fmt: skip
    return Message(headers, None)


@pytest.mark.parametrize(("whose", "seen"), [("bare", "connected"), ("restricted", "alone")])
def test_a_message_does_not_make_a_process_connect_to_an_address(whose, seen):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", CONNECT, whose, str(port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == [seen], ended.stderr[-2000:]
    refusal = "hospital-b asks to be connected to at tcp://127.0.0.1:"
    assert (refusal in ended.stderr) == (whose == "restricted"), ended.stderr[-2000:]


@pytest.fixture
def task(monkeypatch):
    """A stream to hospital-a whose messages go nowhere."""
    cell = SimpleNamespace(fire_and_forget=lambda *_, **__: {})
    stream = SimpleNamespace(get_headers=lambda: {}, get_size=lambda: 100, close=lambda: None)
    made = TxTask(cell, 10, "channel", "topic", TARGET, {}, stream, False, False, True)
    monkeypatch.setattr(ByteStreamer, "tx_task_map", {made.sid: made})
    return made


@pytest.fixture
def acknowledge(task, monkeypatch):
    """Return a function that lets a cell of the server receive an acknowledgement of the stream."""
    cell = bare_cell(monkeypatch, "server")
    ByteStreamer(cell)  # registers FLARE's handler of acknowledgements

    def receive(origin, **headers):
        own = {
            MessageHeaderKey.MSG_TYPE: MessageType.REQ, MessageHeaderKey.ORIGIN: origin,
            MessageHeaderKey.DESTINATION: "server", MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
            MessageHeaderKey.TOPIC: STREAM_ACK_TOPIC, StreamHeaderKey.STREAM_ID: task.sid,
        }  # fmt: skip
        cell.process_message(Endpoint("hospital-b"), None, 1, Message({**own, **headers}, None))

    return receive


ENDS = {StreamHeaderKey.ERROR_MSG: "I have not got it"}


def test_flare_lets_any_site_end_a_stream_to_another(task, acknowledge):
    acknowledge("hospital-b.4d5c3f80", **ENDS)
    assert task.stopped


def test_only_the_receiver_of_a_stream_ends_it(task, acknowledge, caplog):
    restrict_connections()
    restrict_connections()  # a second time changes nothing
    for origin in ("hospital-b.4d5c3f80", "hospital-a", "server", None):
        acknowledge(origin, **ENDS)
        acknowledge(origin, **{StreamHeaderKey.OFFSET: 10**9})
        assert not task.stopped and task.offset_ack == 0, origin
    assert "hospital-b.4d5c3f80 acknowledges a stream to hospital-a.4d5c3f80: refused" in caplog.text
    acknowledge(TARGET, **{StreamHeaderKey.OFFSET: 60})
    assert task.offset_ack == 60 and not task.stopped
    acknowledge(TARGET, **ENDS)
    assert task.stopped
