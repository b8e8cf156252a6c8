"""Connections and streams with the replacements."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.message import Message
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


@pytest.mark.parametrize("late", [True, False])
def test_a_connection_is_closed_if_its_connector_has_ended_before(late):
    """FLARE itself waits for its thread for ever."""
    close_late_connections()
    connection = Mock()
    connection.connector.stopped.is_set.return_value = late
    driver = TcpDriver()
    driver.register_conn_monitor(Mock())
    driver.add_connection(connection)
    assert list(driver.connections.values()) == [connection] and connection.close.called == late


TARGET = "hospital-a.4d5c3f80"


def test_a_message_does_not_make_a_process_connect_to_an_address(caplog):
    """FLARE calls this function for the address in a message; its own would fail without a cell."""
    restrict_connections()
    CoreCell._add_adhoc_connector(None, "hospital-b", "tcp://127.0.0.1:22")
    assert "hospital-b asks to be connected to at tcp://127.0.0.1:22: refused" in caplog.text


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
