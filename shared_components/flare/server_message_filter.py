"""At the server: what the processes of a site may send through it, and to whom.

FLARE 2.9 asks of a message that passes the server whether its sender was ever let in, not what it says, and takes the
sender's word for who that is: by the commands that the server gives to jobs' processes a site whose program was changed
could abort another site's part of a job, by an event it could end the job for all, and in another site's name it could
break what that site sends. Nobody but the server's own processes has to send any of them; a site speaks to the server
alone and for itself, and so does an administrator.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nvflare.apis.fl_constant import ReservedTopic, ServerCommandNames
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
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, STREAM_ERROR_TOPIC, StreamHeaderKey
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.defs import CellChannelTopic as ServerTopic
from nvflare.private.stream_runner import TOPIC_STREAM_ABORT, TOPIC_STREAM_REQUEST

from shared_components.common.sanitise import one_line
from shared_components.flare.refusals import Refusals

logger = logging.getLogger(__name__)

ANY: frozenset[str] = frozenset()  # of the topics
REQUESTS = {
    CellChannel.SERVER_MAIN: frozenset(
        {
            ServerTopic.Challenge,
            ServerTopic.Register,
            ServerTopic.HEART_BEAT,
            ServerTopic.REPORT_JOB_FAILURE,
            ServerTopic.Quit,
        }
    ),
    CellChannel.HCI: ANY,  # an administrator's console, which has roles of its own
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.SERVER_COMMAND: frozenset({ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE}),
    CellChannel.AUX_COMMUNICATION: frozenset(
        {ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK}
    ),
    CellChannel.RETURN_ONLY: ANY,
    OBJ_DOWNLOADER_CHANNEL: ANY,  # of tensors
}
"""What sites and administrators ask for, by channel and topic; nothing else passes."""
ABOUT_STREAMS = (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)  # what has come of a stream of the server's own
SUBMISSIONS = frozenset({TOPIC_STREAM_REQUEST, TOPIC_STREAM_ABORT})  # of administrators: the files of a job
IN_WHOSE_NAME = (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL, StreamHeaderKey.FAILED_DESTINATION)
NOT_TAKEN = {
    MessageHeaderKey.CONN_URL: "it names an address to connect to",
    MessageHeaderKey.SECURE: "it asks for encryption beside TLS",
    MessageHeaderKey.ENCRYPTED: "it is encrypted beside TLS",
}
"""Headers of messages, and why none is taken that has one. FLARE would ask the sender for its certificate before it
goes on, and wait for ever; no run of ours encrypts beside TLS."""
NOBODY = (None, "", "N/A")  # what FLARE says of a connection without a certificate


class Boundary:
    """Refuses what neither a site nor an administrator has to send."""

    def __init__(self) -> None:
        self._refusals = Refusals(logger)

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
        own = FQCN.get_root(name)
        why = _why_not(message, own if own != FQCN.ROOT_SERVER else sender)
        if why is None:
            return None
        self._refusals.say(f"a message of {one_line(sender)} is refused: {why}")
        return make_reply(ReturnCode.UNAUTHENTICATED, error=why)


def _why_not(message: Message, own: str) -> str | None:
    to = str(message.get_header(MessageHeaderKey.DESTINATION))
    if FQCN.get_root(to) != FQCN.ROOT_SERVER:
        return f"it is for {one_line(to)}, and sites speak to the server alone"
    for key in IN_WHOSE_NAME:
        said = str(message.get_header(key, own))
        if FQCN.get_root(said) != own:
            return f"it is in the name of {one_line(said)}"
    for key, why in NOT_TAKEN.items():
        if message.get_header(key):
            return why
    asked = asked_for(message)
    if asked is None or _may_ask(own, *asked):
        return None
    return f"{asked[0]} {asked[1]} is for the server's own processes"


def asked_for(message: Message) -> tuple[str, str] | None:
    """Return the channel and the topic of a request, of a stream's data those that the stream is for.

    Returns:
        None: Nothing is asked for, it is an answer, or it says what has come of a stream. Whatever is no text is
        shown as one, which is no channel's name.
    """
    if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return None
    asked = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
    if asked[0] == STREAM_CHANNEL:
        if asked[1] in ABOUT_STREAMS:
            return None
        asked = message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC)
    channel, topic = (value if isinstance(value, str) else repr(value) for value in asked)
    return one_line(channel), one_line(topic)


def may_ask(requests: Mapping[str, frozenset[str]], channel: str, topic: str) -> bool:
    """Say whether a channel's topic is among requests that pass."""
    return channel in requests and (not requests[channel] or topic in requests[channel])


def _may_ask(own: str, channel: str, topic: str) -> bool:
    if channel == CellChannel.AUX_COMMUNICATION and topic in SUBMISSIONS:
        return is_valid_admin_client_name(own)
    return may_ask(REQUESTS, channel, topic)
