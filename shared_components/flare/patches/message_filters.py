"""Which messages a site's processes may send to the server, and the server to those of a site; refusals are logged.

FLARE 2.9 checks of a message only whether its sender was ever admitted, not its content, and believes the name in it. A
site whose program was changed could abort another site's part of a job by the commands that the server gives to jobs'
processes, end the job for all by an event, and corrupt what another site sends by using its name. None of these
messages has to come from anybody but the server's own processes; a site and an administrator speak to the server
alone, and in their own name.

A site of FLARE 2.9 does whatever the server requests, without any authorisation: it lists its processes, changes its
log or its server, fires events in a running job, and forwards messages in anybody's name. In an honest run the server
makes three requests of a site's process of a job, and of the site's own those that `site_commands` lists.
"""

import logging
from collections.abc import Mapping

from nvflare.apis.fl_constant import ReservedTopic, ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessagePropKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL, OBJ_DOWNLOADER_TOPIC
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, STREAM_ERROR_TOPIC, StreamHeaderKey
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.defs import CellChannelTopic as ServerTopic
from nvflare.private.stream_runner import TOPIC_STREAM_ABORT, TOPIC_STREAM_REQUEST

from shared_components.common.sanitise import one_line

logger = logging.getLogger(__name__)

MOST_SENTENCES = 100  # per process: a refused sender cannot fill the log

ANY: frozenset[str] = frozenset()  # every topic
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
    CellChannel.HCI: ANY,  # an administrator's console, which has its own roles
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.SERVER_COMMAND: frozenset({ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE}),
    CellChannel.AUX_COMMUNICATION: frozenset(
        {ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK}
    ),
    CellChannel.RETURN_ONLY: ANY,
    OBJ_DOWNLOADER_CHANNEL: ANY,  # tensors
}
"""Requests of sites and administrators, by channel and topic; nothing else passes."""
ABOUT_STREAMS = (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)  # acknowledgements of the server's own streams
SUBMISSIONS = frozenset({TOPIC_STREAM_REQUEST, TOPIC_STREAM_ABORT})  # an administrator's: the files of a job
IN_WHOSE_NAME = (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL, StreamHeaderKey.FAILED_DESTINATION)
NOT_TAKEN = {
    MessageHeaderKey.CONN_URL: "it names an address to connect to",
    MessageHeaderKey.SECURE: "it asks for encryption beside TLS",
    MessageHeaderKey.ENCRYPTED: "it is encrypted beside TLS",
}
"""Headers that no accepted message has, and why. For the last two FLARE would request the sender's certificate and
wait for ever; no run of ours encrypts beside TLS."""
NOBODY = (None, "", "N/A")  # FLARE's names for the owner of a connection without a certificate


OF_ALL = {
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.RETURN_ONLY: ANY,  # answers that are streams
}
OF_A_SITE = {**OF_ALL, CellChannel.CLIENT_MAIN: ANY}  # `site_commands` checks the command
OF_A_JOB = {
    **OF_ALL,
    CellChannel.AUX_COMMUNICATION: frozenset({ReservedTopic.END_RUN}),
    OBJ_DOWNLOADER_CHANNEL: frozenset({OBJ_DOWNLOADER_TOPIC}),  # tensors of an answer that the site has given
}
"""The server's requests of a site's process and of a job's process there, by channel and topic; nothing else passes."""


class Refusals:
    """The refusals that have been logged so far: each once, and at most `MOST_SENTENCES`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Log a sentence (one line: who is refused, and why) if it is new and there are not too many."""
        if sentence not in self._said and len(self._said) < MOST_SENTENCES:
            self._said.add(sentence)
            self._logger.error("%s", sentence)


class Boundary:
    """Refuses what neither a site nor an administrator has to send, and logs why."""

    def __init__(self) -> None:
        self._refusals = Refusals(logger)

    def passes(self, message: Message) -> bool:
        """Return whether the server processes a message or forwards it.

        The sender is the owner of the connection's certificate, whatever the message says; the server's own processes
        connect from its own machine, without one. A name alone proves nothing: FLARE lets a site call itself
        ``server.hospital-b``.
        """
        endpoint = message.get_prop(MessagePropKey.ENDPOINT)
        name = endpoint.name if endpoint is not None else ""
        owner = message.get_prop(MessagePropKey.COMMON_NAME)
        if FQCN.get_root(name) == FQCN.ROOT_SERVER and owner in NOBODY:
            return True
        sender = name if owner in NOBODY else owner
        own = FQCN.get_root(name)
        why = _why_not_at_server(message, own if own != FQCN.ROOT_SERVER else sender)
        if why is not None:
            self._refusals.say(f"a message of {one_line(sender)} is refused: {why}")
        return why is None


def _why_not_at_server(message: Message, own: str) -> str | None:
    to = str(message.get_header(MessageHeaderKey.DESTINATION))
    if FQCN.get_root(to) != FQCN.ROOT_SERVER:
        return f"it is for {one_line(to)}, and sites speak to the server alone"
    for key in IN_WHOSE_NAME:
        name = str(message.get_header(key, own))
        if FQCN.get_root(name) != own:
            return f"it is in the name of {one_line(name)}"
    if why := _why_not_taken(message):
        return why
    asked = _asked_for(message)
    if asked is None or _may_ask(own, *asked):
        return None
    return f"{asked[0]} {asked[1]} is for the server's own processes"


class SiteBoundary:
    """Refuses what the server does not have to send, and logs why."""

    def __init__(self) -> None:
        self._refusals = Refusals(logger)

    def passes(self, message: Message, own: str, *, own_process: bool) -> bool:
        """Return whether a process of a site processes a message or forwards it.

        Args:
            message: The message as received.
            own: The name of the process's cell, ``hospital-a`` or ``hospital-a.<job>``.
            own_process: Whether it came over the connection between the site's own processes. A message in the site's
                name then passes; any other is the server's, forwarded by the site's own process.
        """
        origin = FQCN.get_root(str(message.get_header(MessageHeaderKey.ORIGIN)))
        if own_process and origin == FQCN.get_root(own):
            return True
        why = _why_not_at_site(message, own)
        if why is not None:
            self._refusals.say(f"a message of the server is refused: {why}")
        return why is None


def _why_not_at_site(message: Message, own: str) -> str | None:
    to = str(message.get_header(MessageHeaderKey.DESTINATION))
    if to != own and not to.startswith(f"{own}."):
        return f"it is for {one_line(to)}, and this is {own}"
    for key in IN_WHOSE_NAME:
        name = str(message.get_header(key, FQCN.ROOT_SERVER))
        # the site's own process forwards to its jobs
        forwarded = key == MessageHeaderKey.FROM_CELL and FQCN.get_parent(own)
        if FQCN.get_root(name) not in (FQCN.ROOT_SERVER, FQCN.get_root(own) if forwarded else ""):
            return f"it is in the name of {one_line(name)}"
    if why := _why_not_taken(message):
        return why
    asked = _asked_for(message)
    if asked is None or _is_among(OF_A_JOB if FQCN.get_parent(to) else OF_A_SITE, *asked):
        return None
    return f"no server has to ask {one_line(to)} for {asked[0]} {asked[1]}"


def _why_not_taken(message: Message) -> str | None:
    """Return the reason of `NOT_TAKEN` for the first of its headers that a message has, if any."""
    return next((why for key, why in NOT_TAKEN.items() if message.get_header(key)), None)


def _asked_for(message: Message) -> tuple[str, str] | None:
    """Return the channel and the topic of a request; for a stream's data, those that the stream is for.

    None: The message is an answer or acknowledges a stream. A value that is no text is returned as its `repr`, which is
    no channel's name.
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


def _is_among(requests: Mapping[str, frozenset[str]], channel: str, topic: str) -> bool:
    return channel in requests and (not requests[channel] or topic in requests[channel])


def _may_ask(own: str, channel: str, topic: str) -> bool:
    if channel == CellChannel.AUX_COMMUNICATION and topic in SUBMISSIONS:
        return is_valid_admin_client_name(own)
    return _is_among(REQUESTS, channel, topic)
