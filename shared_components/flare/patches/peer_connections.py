"""In every process: refuse to connect to an address in a message, and let only its receiver end a stream.

FLARE 2.9 connects to an address that a message names, without TLS and without a certificate: a site could make the
server talk to it under another site's name, and a server could reach into a hospital's network. It also accepts any
site's acknowledgement of a stream to another: a site could end whatever the server sends to others, their weights
included. No run of ours needs either.
"""

import logging
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_streamer import TxTask

from shared_components.common.sanitise import one_line
from shared_components.flare.patches.message_filters import Refusals
from shared_components.flare.patches.replace import replace

SHA256_ADHOC = "9656257007fcf677d0a445bcc7b9c8f8a81dc715e7d0d3630e4551126e00ffae"
SHA256_ACK = "5d6dbe9c0357e1cceb98d4e90025e20a7fafc3fc18737e6f965c35e1191ba77e"

_REFUSALS = Refusals(logging.getLogger(__name__))


def keep_to_the_server() -> None:
    """Connect to no address in a message, and take acknowledgements of a stream from its receiver alone."""
    replace(CoreCell, "_add_adhoc_connector", lambda _: _connect_to_nobody, sha256=SHA256_ADHOC)
    replace(TxTask, "handle_ack", _from_its_receiver, sha256=SHA256_ACK)


def _from_its_receiver(handle: Callable[..., None]) -> Callable[..., None]:
    def from_its_receiver(task: TxTask, message: Message) -> None:
        origin = message.get_header(MessageHeaderKey.ORIGIN)
        if origin == task.target:
            handle(task, message)
        else:
            _REFUSALS.say(f"{one_line(origin)} says what has come of a stream to {task.target}: refused")

    return from_its_receiver


def _connect_to_nobody(cell: Any, to_cell: str, url: str) -> None:
    _REFUSALS.say(f"{one_line(to_cell)} asks to be connected to at {one_line(url)}: refused")
