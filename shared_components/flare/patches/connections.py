"""Check incoming messages, restrict connections, and number streams, in every process that talks to another party.

FLARE 2.9 processes any message of an admitted party, and connects to an address in a message without TLS and without a
certificate. A site could make the server connect under another site's name, and a server could reach into a hospital's
network. FLARE also accepts acknowledgements of a stream from anybody, so one site could end a stream to another site.
"""

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import NullConnection
from nvflare.fuel.f3.streaming import byte_streamer, stream_utils
from nvflare.fuel.f3.streaming.byte_streamer import TxTask

from shared_components.common.sanitise import one_line
from shared_components.flare.deployment.federation_file import RELAY
from shared_components.flare.patches.cells import read_cell
from shared_components.flare.patches.message_filters import Boundary, Refusals, RelayBoundary, SiteBoundary
from shared_components.flare.patches.replace import replace

Own = Callable[..., Any]  # a function of FLARE
_REFUSALS = Refusals(logging.getLogger(__name__))


def check_incoming_messages() -> None:
    """Process only messages that pass the boundary of this process: the server's, a site's or a relay's."""
    check = partial(_process_if_passed, (Boundary(), SiteBoundary(), RelayBoundary()))
    replace(CoreCell, "_process_received_msg", check)


def _process_if_passed(
    boundaries: tuple[Boundary, SiteBoundary, RelayBoundary], process: Own, cell, endpoint, connection, message
):
    at_server, at_site, at_relay = boundaries
    message.set_prop(MessagePropKey.ENDPOINT, endpoint)
    if cell.my_info.is_on_server:
        properties = connection.get_conn_properties() if connection else {}
        message.set_prop(MessagePropKey.COMMON_NAME, properties.get(DriverParams.PEER_CN.value))
        passes = not cell.my_info.is_root or at_server.passes(message)
    elif cell.my_info.fqcn.endswith(RELAY):
        passes = at_relay.passes(message, cell.my_info.fqcn)
    else:
        passes = at_site.passes(message, cell.my_info.fqcn, own_process=_is_own(cell, connection))
    if passes:
        process(cell, endpoint, connection, message)


def _is_own(cell: Any, connection: Any) -> bool:
    """Return whether a connection is between two processes of this site.

    FLARE uses one kind of connector for a job's connection to its site and for a site's connection to its relay.
    """
    to_parent = cell.bb_int_connector if read_cell(cell.my_info.fqcn).job else None
    handles = {own.handle for own in (cell.int_listener, to_parent) if own is not None}
    return isinstance(connection, NullConnection) or (connection is not None and connection.connector.handle in handles)


def restrict_connections() -> None:
    """Connect to no address in a message, and accept acknowledgements of a stream only from its receiver."""
    replace(CoreCell, "_add_adhoc_connector", _refuse_to_connect)
    replace(TxTask, "handle_ack", _handle_from_receiver)


def _refuse_to_connect(_: Own, cell: Any, to_cell: str, url: str) -> None:
    _REFUSALS.log(f"{one_line(to_cell)} asks to be connected to at {one_line(url)}: refused")


def _handle_from_receiver(handle: Own, task: TxTask, message: Message) -> None:
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    if origin == task.target:
        handle(task, message)
    else:
        _REFUSALS.log(f"{one_line(origin)} acknowledges a stream to {task.target}: refused")


def close_late_connections() -> None:
    """Close each connection that is established while its process closes all connections.

    FLARE waits for the threads of all connections, but closes only the connections that were established before.
    """
    replace(BaseDriver, "add_connection", _close_if_stopped)


def _close_if_stopped(add: Own, driver: Any, connection: Any) -> None:
    add(driver, connection)
    if connection.connector.stopped.is_set():  # set before the known connections are closed
        connection.close()


def number_streams() -> None:
    """Give each stream of this process a unique number.

    FLARE increments its counter under a lock, but reads it after releasing the lock. Two streams with one number mix at
    the receiver, and a site's answer hangs until a timeout.
    """
    numbers = itertools.count(stream_utils.sid_base + 1_000_000)  # above the numbers that FLARE has used before
    replace(byte_streamer, "gen_stream_id", lambda _: next(numbers))
