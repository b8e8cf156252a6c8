"""Connections and streams with the replacements."""

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode
from nvflare.fuel.f3.streaming import byte_streamer, stream_utils
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from shared_components.flare.patches.connections import close_late_connections, number_streams, restrict_connections
from tests.flare.conftest import put_back


@pytest.fixture(autouse=True)
def flares_own(monkeypatch):
    functions = ((CoreCell, "_add_adhoc_connector"), (TxTask, "handle_ack"))
    put_back(monkeypatch, *functions, (byte_streamer, "gen_stream_id"), (BaseDriver, "add_connection"))


def test_every_stream_has_its_own_number(monkeypatch):
    before = byte_streamer.gen_stream_id()
    monkeypatch.setattr(stream_utils, "lock", None)  # of FLARE's own counter, which two threads may read together
    number_streams()
    numbers = byte_streamer.gen_stream_id
    number_streams()  # a second time changes nothing
    assert byte_streamer.gen_stream_id is numbers
    ids: list[int] = []
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(lambda: ids.extend([byte_streamer.gen_stream_id() for _ in range(2000)]))
    assert len(set(ids)) == len(ids) == 8000 and min(ids) > before


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


def test_a_late_connection_is_closed_and_the_end_comes():
    close_late_connections()
    driver, manager = Late(), ConnManager(Endpoint("here"))
    thread = threading.Thread(target=manager.stop, daemon=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        params = dict(zip(PARAMS, ("tcp", *listening.getsockname(), ""), strict=True))
        manager.add_connector(driver, params, Mode.ACTIVE)
        manager.start()
        assert driver.connecting.wait(30)

        thread.start()
        thread.join(30)

    assert not thread.is_alive()


TARGET = "hospital-a.4d5c3f80"
CONNECT = """
import os, socket, sys

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from shared_components.flare.patches.connections import restrict_connections
from tests.flare.patches.test_connections import invitation

restrict_connections()
listener = socket.create_server(("127.0.0.1", 0))
listener.settimeout(1)
cell = CoreCell("server", f"tcp://127.0.0.1:{sys.argv[1]}", secure=False, credentials={})
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


def test_a_message_does_not_make_a_process_connect_to_an_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", CONNECT, str(port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["alone"], ended.stderr[-2000:]
    assert "hospital-b asks to be connected to at tcp://127.0.0.1:" in ended.stderr, ended.stderr[-2000:]


def acknowledgement(origin, **headers):
    return Message({MessageHeaderKey.ORIGIN: origin, **headers}, None)


@pytest.fixture
def task():
    """A stream to hospital-a whose messages go nowhere."""
    cell = SimpleNamespace(fire_and_forget=lambda *_, **__: {})
    stream = SimpleNamespace(get_headers=lambda: {}, get_size=lambda: 100, close=lambda: None)
    return TxTask(cell, 10, "channel", "topic", TARGET, {}, stream, False, False, True)


ENDS = {StreamHeaderKey.ERROR_MSG: "I have not got it"}


def test_only_the_receiver_of_a_stream_ends_it(task, caplog):
    restrict_connections()
    restrict_connections()  # a second time changes nothing
    for origin in ("hospital-b.4d5c3f80", "hospital-a", "server", None):
        task.handle_ack(acknowledgement(origin, **ENDS))
        task.handle_ack(acknowledgement(origin, **{StreamHeaderKey.OFFSET: 10**9}))
        assert not task.stopped and task.offset_ack == 0, origin
    assert "hospital-b.4d5c3f80 acknowledges a stream to hospital-a.4d5c3f80: refused" in caplog.text
    task.handle_ack(acknowledgement(TARGET, **{StreamHeaderKey.OFFSET: 60}))
    assert task.offset_ack == 60 and not task.stopped
    task.handle_ack(acknowledgement(TARGET, **ENDS))
    assert task.stopped
