"""Check every message that arrives over a connection before FLARE processes it.

The check holds from the first message on: its component is built before the process connects to anybody.
"""

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessagePropKey
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import NullConnection

from shared_components.flare.patches.message_filters import Boundary, SiteBoundary
from shared_components.flare.patches.replace import replace

SHA256 = "ed7a0b62ac6ea06585cb0303368c034ea188d0dd237ff2ed7c2ed9827d32671f"


def stand_guard() -> None:
    """Process only what `message_filters` passes: `Boundary` at the server, `SiteBoundary` at a site."""
    replace(CoreCell, "_process_received_msg", _guarded, sha256=SHA256)


def _guarded(process: Callable[..., None]) -> Callable[..., None]:
    at_server, at_site = Boundary(), SiteBoundary()

    def guarded(cell: Any, endpoint: Any, connection: Any, message: Message) -> None:
        if cell.my_info.is_on_server:
            message.set_prop(MessagePropKey.ENDPOINT, endpoint)
            message.set_prop(MessagePropKey.COMMON_NAME, _common_name(connection))
            passes = not cell.my_info.is_root or at_server.passes(message)
        else:
            passes = at_site.passes(message, cell.my_info.fqcn, own_process=_is_own(cell, connection))
        if passes:
            process(cell, endpoint, connection, message)

    return guarded


def _common_name(connection: Any) -> str | None:
    return connection.get_conn_properties().get(DriverParams.PEER_CN.value) if connection else None


def _is_own(cell: Any, connection: Any) -> bool:
    own = (cell.int_listener, cell.bb_int_connector)
    handles = {one.handle for one in own if one is not None}
    return isinstance(connection, NullConnection) or (connection is not None and connection.connector.handle in handles)
