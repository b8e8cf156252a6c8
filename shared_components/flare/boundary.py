"""At the server: what the processes of a site may send through it, and to whom.

FLARE 2.9 asks of a message that passes the server whose it is, not what it says: by the commands that the server gives
to jobs' processes, a site whose program was changed could abort another site's part of a job. Nobody but the server's
own processes has to send any of them; a site speaks to the server alone, and so does an administrator.
"""

from __future__ import annotations

import logging
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey

from shared_components.plain_text import one_line

logger = logging.getLogger(__name__)

ANY: frozenset[str] = frozenset()  # of the topics
REQUESTS = {
    CellChannel.SERVER_MAIN: ANY,  # registration, heartbeats, how a job has ended
    CellChannel.HCI: ANY,  # an administrator's console, which has roles of its own
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.SERVER_COMMAND: frozenset({ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE}),
    CellChannel.AUX_COMMUNICATION: ANY,
    CellChannel.RETURN_ONLY: ANY,
    OBJ_DOWNLOADER_CHANNEL: ANY,  # of tensors
}
"""What sites and administrators ask for, by channel and topic; nothing else passes."""
NOBODY = (None, "", "N/A")  # what FLARE says of a connection without a certificate
MOST_SENTENCES = 100  # about messages that were refused, in one life of the server


class Boundary:
    """Refuses what neither a site nor an administrator has to send.

    Attributes:
        refused: Who has sent what, so that it is said once.
    """

    def __init__(self) -> None:
        self.refused: set[tuple[str, str]] = set()

    def stand(self, cell: Any) -> None:
        """Look at every message that comes to the server's cell, before it takes it or hands it on."""
        cell.add_incoming_filter(channel="*", topic="*", cb=self.look)

    def look(self, message: Message) -> Message | None:
        """Return why a message is refused, as FLARE's answer; None where it may pass.

        The sender is whose certificate the connection has, whatever the message says; the server's own processes are on
        its own machine, without one. A name alone says nothing: FLARE lets a site call itself ``server.hospital-b``.
        """
        endpoint = message.get_prop(MessagePropKey.ENDPOINT)
        name = endpoint.name if endpoint is not None else ""
        owner = message.get_prop(MessagePropKey.COMMON_NAME)
        if FQCN.get_root(name) == FQCN.ROOT_SERVER and owner in NOBODY:
            return None
        sender = name if owner in NOBODY else owner
        why = _why_not(message)
        if why is None:
            return None
        if (sender, why) not in self.refused and len(self.refused) < MOST_SENTENCES:
            self.refused.add((sender, why))
            logger.error("a message of %s is refused: %s", one_line(sender), why)
        return make_reply(ReturnCode.UNAUTHENTICATED, error=why)


def _why_not(message: Message) -> str | None:
    to = str(message.get_header(MessageHeaderKey.DESTINATION))
    if FQCN.get_root(to) != FQCN.ROOT_SERVER:
        return f"it is for {one_line(to)}, and sites speak to the server alone"
    if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return None
    channel, topic = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
    if channel == STREAM_CHANNEL:
        channel, topic = (
            message.get_header(StreamHeaderKey.CHANNEL),
            message.get_header(StreamHeaderKey.TOPIC),
        )
        if channel is None:  # a stream's own words, such as how much of it has come
            return None
    if isinstance(channel, str) and isinstance(topic, str) and channel in REQUESTS:
        if not REQUESTS[channel] or topic in REQUESTS[channel]:
            return None
    return f"{one_line(channel)} {one_line(topic)} is for the server's own processes"
