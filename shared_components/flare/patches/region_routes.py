"""Let the messages between a region's sites and its node pass only their relay.

FLARE 2.9 sends every message between two clients through the server, also if both are connected to one relay. All
updates would then still reach the server. The relay checks each message's sender by its certificate and its token.
"""

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.sec import authn

from shared_components.flare.patches.cells import read_cell
from shared_components.flare.patches.replace import expect, replace


def keep_within_region() -> None:
    """Route messages between a site and its region's node by their relay, in this process."""
    expect(authn, "add_server_path_reply_authentication_headers")  # calls the replaced function for replies
    replace(authn, "add_authentication_headers", _add_for_relay)


def within_region(origin: object, destination: object) -> bool:
    """Return whether a message is between a site and the node of its region."""
    one, other = read_cell(origin), read_cell(destination)
    return bool(one.node) and one.node == other.node and one.node in (one.party, other.party)


def _add_for_relay(add: Callable[..., None], message: Message, *identity: Any, **more: Any) -> None:
    """Add the headers that the relay, too, asks for; then remove FLARE's order to go through the server."""
    add(message, *identity, **more)
    if within_region(message.get_header(MessageHeaderKey.ORIGIN), message.get_header(MessageHeaderKey.DESTINATION)):
        message.remove_header(MessageHeaderKey.SERVER_TRANSIT_REQUIRED)
