"""Check incoming messages, restrict connections, and number streams, in every process that talks to another party.

FLARE 2.9 processes any message of an admitted party, and connects to an address in a message without TLS and without a
certificate. A site could make the server connect under another site's name, and a server could reach into a hospital's
network. FLARE also accepts acknowledgements of a stream from anybody, so one site could end a stream to another site.

Every message passes one function of FLARE, which `add_check` guards.
"""

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import NullConnection
from nvflare.fuel.f3.streaming import byte_streamer, stream_utils
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, StreamHeaderKey

from shared_components.common.sanitise import one_line
from shared_components.flare.deployment.federation_file import RELAY
from shared_components.flare.patches.cells import read_cell
from shared_components.flare.patches.message_filters import Boundary, Refusals, RelayBoundary, SiteBoundary
from shared_components.flare.patches.replace import expect, replace

Own = Callable[..., Any]  # a function of FLARE
Check = Callable[[Any, Any, Message], bool]  # cell, connection and message: whether the cell may process the message
_REFUSALS = Refusals(logging.getLogger(__name__))
_CHECKS: dict[str, Check] = {}  # of this process, by name


def add_check(name: str, check: Check) -> None:
    """Let every cell of this process process only messages that pass a check; a second one of a name is ignored."""
    _CHECKS.setdefault(name, check)
    replace(CoreCell, "_process_received_msg", _process_if_passed)


def _process_if_passed(process: Own, cell: Any, endpoint: Any, connection: Any, message: Message) -> None:
    message.set_prop(MessagePropKey.ENDPOINT, endpoint)
    if all(passes(cell, connection, message) for passes in tuple(_CHECKS.values())):
        process(cell, endpoint, connection, message)


def check_incoming_messages() -> None:
    """Process only messages that pass the boundary of this process: the server's, a site's or a relay's."""
    add_check("boundary", partial(_passes_boundary, (Boundary(), SiteBoundary(), RelayBoundary())))


def _passes_boundary(
    boundaries: tuple[Boundary, SiteBoundary, RelayBoundary], cell: Any, connection: Any, message: Message
) -> bool:
    at_server, at_site, at_relay = boundaries
    if cell.my_info.is_on_server:
        properties = connection.get_conn_properties() if connection else {}
        message.set_prop(MessagePropKey.COMMON_NAME, properties.get(DriverParams.PEER_CN.value))
        return not cell.my_info.is_root or at_server.passes(message)
    if cell.my_info.fqcn.endswith(RELAY):
        return at_relay.passes(message, cell.my_info.fqcn)
    return at_site.passes(message, cell.my_info.fqcn, own_process=_is_own(cell, connection))


def _is_own(cell: Any, connection: Any) -> bool:
    """Return whether a connection is between two processes of this site.

    FLARE uses one kind of connector for a job's connection to its site and for a site's connection to its relay.
    """
    to_parent = cell.bb_int_connector if read_cell(cell.my_info.fqcn).job else None
    handles = {own.handle for own in (cell.int_listener, to_parent) if own is not None}
    return isinstance(connection, NullConnection) or (connection is not None and connection.connector.handle in handles)


def restrict_connections() -> None:
    """Connect to no address in a message, and accept acknowledgements of a stream only from its receiver."""
    expect(ByteStreamer, "_ack_handler")  # finds the stream as `_is_from_receiver` does
    add_check("connections", _is_from_receiver)


def _is_from_receiver(cell: Any, connection: Any, message: Message) -> bool:
    """Remove an address from a message; return False for an acknowledgement that is not the stream's receiver's."""
    origin, url = message.get_header(MessageHeaderKey.ORIGIN), message.get_header(MessageHeaderKey.CONN_URL)
    if url is not None:
        message.remove_header(MessageHeaderKey.CONN_URL)
        _REFUSALS.log(f"{one_line(origin)} asks to be connected to at {one_line(url)}: refused")
    names = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
    here = message.get_header(MessageHeaderKey.DESTINATION) == cell.my_info.fqcn
    if names != (STREAM_CHANNEL, STREAM_ACK_TOPIC) or not here:
        return True
    task = ByteStreamer.tx_task_map.get(message.get_header(StreamHeaderKey.STREAM_ID))
    if task is None or origin == task.target:
        return True
    _REFUSALS.log(f"{one_line(origin)} acknowledges a stream to {task.target}: refused")
    return False


def close_late_connections() -> None:
    """Close each connection that is established while its process closes all connections.

    FLARE waits for the threads of all connections, but closes only the connections that were established before. Its
    registry of drivers therefore gets a subclass of each.
    """
    communicator.load_comm_drivers()
    drivers = communicator.driver_mgr.drivers
    for scheme, driver in drivers.items():
        if not issubclass(driver, ClosesLate):
            drivers[scheme] = type(driver.__name__, (ClosesLate, driver), {})


class ClosesLate:
    """A driver's connections, which are closed if the driver's connector has stopped."""

    def add_connection(self, connection: Any) -> None:
        """Add a connection, and close it if the connector has stopped before."""
        super().add_connection(connection)  # type: ignore[misc]  # of a driver
        if connection.connector.stopped.is_set():  # set before the known connections are closed
            connection.close()


def number_streams() -> None:
    """Give each stream of this process a unique number.

    FLARE increments its counter under a lock, but reads it after releasing the lock. Two streams with one number mix at
    the receiver, and a site's answer hangs until a timeout.
    """
    numbers = itertools.count(stream_utils.sid_base + 1_000_000)  # above the numbers that FLARE has used before
    replace(byte_streamer, "gen_stream_id", lambda _: next(numbers))
