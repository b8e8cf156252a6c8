"""Filter the messages between sites and server; refusals are logged.

FLARE 2.9 checks only whether a message's sender was ever admitted, and believes the name in the message. A modified
site could abort another site's part of a job, end the job for all, and send data in another site's name. A site does
whatever the server requests: it lists its processes, fires events in a running job, and forwards messages in anybody's
name.

In a normal run, sites and administrators send messages only to the server, in their own name. The server makes three
requests to a site's process of a job, and to the site's own process the requests in `site_commands`.
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
from shared_components.flare.patches.cells import LOST_SITES, belongs_to, read_cell

logger = logging.getLogger(__name__)

MOST_SENTENCES = 100  # per process, so that a refused sender cannot fill the log
ANY: frozenset[str] = frozenset()  # every topic
CLIENT_REQUESTS = {
    CellChannel.SERVER_MAIN: frozenset({
        ServerTopic.Challenge, ServerTopic.Register, ServerTopic.HEART_BEAT, ServerTopic.REPORT_JOB_FAILURE,
        ServerTopic.Quit,
    }),
    CellChannel.HCI: ANY,  # an administrator's console, with its own roles
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.SERVER_COMMAND: frozenset({ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE}),
    CellChannel.AUX_COMMUNICATION: frozenset(
        {ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK}
    ),
    CellChannel.RETURN_ONLY: ANY,
    OBJ_DOWNLOADER_CHANNEL: ANY,  # tensors
}  # fmt: skip
"""Permitted requests from sites and administrators: topics by channel."""
SUBMISSIONS = frozenset({TOPIC_STREAM_REQUEST, TOPIC_STREAM_ABORT})  # files of a job, from an administrator
SERVER_REQUESTS = {
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.RETURN_ONLY: ANY,  # answers that are streams
}
TO_SITE = {**SERVER_REQUESTS, CellChannel.CLIENT_MAIN: ANY}  # `site_commands` checks the command
TO_JOB = {
    **SERVER_REQUESTS,
    CellChannel.AUX_COMMUNICATION: frozenset({ReservedTopic.END_RUN}),
    OBJ_DOWNLOADER_CHANNEL: frozenset({OBJ_DOWNLOADER_TOPIC}),  # tensors in the site's answer
}
"""Permitted requests from the server to a site's process of a job; `TO_SITE` lists those to the site's own process."""
OF_RELAY = {CellChannel.CELLNET: frozenset({CellChannelTopic.Bye})}
"""Permitted requests from and to a relay itself."""
TO_NODES_JOB = {**TO_JOB, CellChannel.AUX_COMMUNICATION: frozenset({ReservedTopic.END_RUN, LOST_SITES})}
TO_NODE = {
    channel: CLIENT_REQUESTS[channel]
    for channel in (
        CellChannel.SERVER_COMMAND, CellChannel.AUX_COMMUNICATION, CellChannel.RETURN_ONLY, OBJ_DOWNLOADER_CHANNEL
    )
}  # fmt: skip
"""Permitted requests from a site's process of a job to the process of its region's node."""
FROM_NODE = {CellChannel.RETURN_ONLY: ANY, OBJ_DOWNLOADER_CHANNEL: TO_JOB[OBJ_DOWNLOADER_CHANNEL]}
"""Permitted requests from the process of a region's node to a site's process of the same job."""
SENDER_HEADERS = (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL, StreamHeaderKey.FAILED_DESTINATION)
FORBIDDEN_HEADERS = {
    MessageHeaderKey.CONN_URL: "it names an address to connect to",
    # FLARE would request the sender's certificate and wait forever
    MessageHeaderKey.SECURE: "it asks for encryption beside TLS",
    MessageHeaderKey.ENCRYPTED: "it is encrypted beside TLS",
}
"""Headers that no accepted message has, with the reason of the refusal."""
NOBODY = (None, "", "N/A")  # FLARE's names for the owner of a connection without a certificate


class Refusals:
    """Log refusals: each one once, and at most `MOST_SENTENCES`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged: set[str] = set()

    def log(self, sentence: str) -> None:
        """Log who is refused and why, in one line, if the sentence is new and there are not too many."""
        if sentence not in self._logged and len(self._logged) < MOST_SENTENCES:
            self._logged.add(sentence)
            self._logger.error("%s", sentence)


class Boundary:
    """Filter of messages to the server."""

    def __init__(self) -> None:
        self._refusals = Refusals(logger)

    def passes(self, message: Message) -> bool:
        """Return whether the server processes or forwards a message; log why not.

        The sender is the owner of the connection's certificate, whatever name the message has. The server's own
        processes connect from its own machine, without a certificate. A name alone proves nothing: FLARE lets a site
        call itself ``server.hospital-b``.
        """
        endpoint = message.get_prop(MessagePropKey.ENDPOINT)
        name = endpoint.name if endpoint is not None else ""
        own, owner = FQCN.get_root(name), message.get_prop(MessagePropKey.COMMON_NAME)
        if own == FQCN.ROOT_SERVER and owner in NOBODY:
            return True
        sender = name if owner in NOBODY else owner
        problem = _problem_at_server(message, own if own != FQCN.ROOT_SERVER else sender)
        if problem is not None:
            self._refusals.log(f"a message of {one_line(sender)} is refused: {problem}")
        return problem is None


def _problem_at_server(message: Message, own: str) -> str | None:
    target = str(message.get_header(MessageHeaderKey.DESTINATION))
    if FQCN.get_root(target) != FQCN.ROOT_SERVER:
        return f"it is for {one_line(target)}, but sites send messages only to the server"
    for key in SENDER_HEADERS:
        name = str(message.get_header(key, own))
        if FQCN.get_root(name) != own:
            return f"it is in the name of {one_line(name)}"
    if problem := _forbidden_header(message):
        return problem
    request = _request(message)
    if request is None or _may_request(own, *request):
        return None
    return f"{request[0]} {request[1]} is for the server's own processes"


class SiteBoundary:
    """Filter of messages to a site's processes, or to the processes of a region's node."""

    def __init__(self) -> None:
        self._refusals = Refusals(logger)

    def passes(self, message: Message, own: str, *, own_process: bool) -> bool:
        """Return whether the process of the cell ``own`` processes or forwards a message; log why not.

        If the message came from another process of the site (``own_process``), it passes in the site's name; that
        process has forwarded any other message from the server or the relay.
        """
        if own_process and belongs_to(message.get_header(MessageHeaderKey.ORIGIN), read_cell(own).party):
            return True
        problem = _problem_at_site(message, own)
        if problem is not None:
            self._refusals.log(f"a message of {self._sender(message)} is refused: {problem}")
        return problem is None

    def _sender(self, message: Message) -> str:
        cell = read_cell(message.get_header(MessageHeaderKey.ORIGIN))
        return f"{one_line(cell.name)} in the region" if cell.relay else "the server"


class RelayBoundary:
    """Filter of messages that a relay processes or forwards.

    FLARE's relay checks by mutual TLS which party has made a connection, and then believes the name in a message.
    """

    def __init__(self) -> None:
        self._refusals = Refusals(logger)

    def passes(self, message: Message, relay: str) -> bool:
        """Return whether the relay processes or forwards a message; log why not."""
        endpoint = message.get_prop(MessagePropKey.ENDPOINT)
        sender = endpoint.name if endpoint is not None else ""
        problem = _problem_at_site(message, relay) if sender == FQCN.ROOT_SERVER else _problem_at_relay(message, sender)
        if problem is not None:
            self._refusals.log(f"a message of {one_line(sender)} is refused: {problem}")
        return problem is None


def _problem_at_relay(message: Message, party: str) -> str | None:
    """Return why a relay refuses a message of a connected party; None if it does not."""
    target = str(message.get_header(MessageHeaderKey.DESTINATION))
    for key in SENDER_HEADERS:
        if not belongs_to(name := message.get_header(key, party), party):
            return f"it is in the name of {one_line(name)}"
    if FQCN.get_root(target) == FQCN.ROOT_SERVER:
        return _forbidden_header(message)  # the server checks the request
    if target == read_cell(party).relay:
        request = _request(message)
        if request is not None and not _is_listed(OF_RELAY, *request):
            return f"nobody needs to ask a relay for {request[0]} {request[1]}"
        return _forbidden_header(message)
    return _problem_within_region(message, str(message.get_header(MessageHeaderKey.ORIGIN)), target)


def _problem_at_site(message: Message, own: str) -> str | None:
    """Return why a site, a region's node or a relay refuses a message from outside; None if it does not."""
    target = str(message.get_header(MessageHeaderKey.DESTINATION))
    if not belongs_to(target, own):
        return f"it is for {one_line(target)}, and this is {own}"
    cell, origin = read_cell(own), str(message.get_header(MessageHeaderKey.ORIGIN))
    if cell.relay and FQCN.get_root(origin) == cell.relay and origin != cell.relay:
        return _problem_within_region(message, origin, target)
    for key in SENDER_HEADERS:
        name = str(message.get_header(key, FQCN.ROOT_SERVER))
        # the relay answers if it cannot reach the server; the relay, and the site's own process, forward to its jobs
        from_relay = name == cell.relay != own
        forwarded = key == MessageHeaderKey.FROM_CELL and cell.job and name == cell.party
        if FQCN.get_root(name) != FQCN.ROOT_SERVER and not from_relay and not forwarded:
            return f"it is in the name of {one_line(name)}"
    if problem := _forbidden_header(message):
        return problem
    request, permitted, asked = _request(message), TO_SITE, read_cell(target)
    if asked.job:
        permitted = TO_NODES_JOB if asked.party == asked.node else TO_JOB
    if request is None or _is_listed(OF_RELAY if origin == cell.relay else permitted, *request):
        return None
    return f"no server needs to ask {one_line(target)} for {request[0]} {request[1]}"


def _problem_within_region(message: Message, origin: str, target: str) -> str | None:
    """Return why a message between two parties of a region is refused; None if it belongs to a job and passes."""
    one, other = read_cell(origin), read_cell(target)
    if one.node != other.node or one.job != other.job or not one.job:
        return f"it is from {one_line(origin)} to {one_line(target)}, not between two processes of a job in a region"
    if (one.party == one.node) == (other.party == one.node):
        return f"it is from {one_line(origin)} to {one_line(target)}; sites send messages only to their region's node"
    for key in (MessageHeaderKey.FROM_CELL, StreamHeaderKey.FAILED_DESTINATION):
        name = str(message.get_header(key, origin))
        if name not in (one.relay, one.party, origin, other.party):
            return f"it is in the name of {one_line(name)}"
    if problem := _forbidden_header(message):
        return problem
    request = _request(message)
    if request is None or _is_listed(TO_NODE if other.party == one.node else FROM_NODE, *request):
        return None
    return f"nobody in a region needs to ask {one_line(target)} for {request[0]} {request[1]}"


def _forbidden_header(message: Message) -> str | None:
    return next((reason for key, reason in FORBIDDEN_HEADERS.items() if message.get_header(key)), None)


def _request(message: Message) -> tuple[str, str] | None:
    """Return the channel and topic of a request, or of the request that a stream belongs to.

    None means an answer or an acknowledgement of a stream. A value that is no text becomes its `repr`, which is no
    channel's name.
    """
    if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return None
    names = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
    if names[0] == STREAM_CHANNEL:
        if names[1] in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC):  # about the server's own streams
            return None
        names = message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC)
    channel, topic = (one_line(name if isinstance(name, str) else repr(name)) for name in names)
    return channel, topic


def _is_listed(requests: Mapping[str, frozenset[str]], channel: str, topic: str) -> bool:
    return channel in requests and (not requests[channel] or topic in requests[channel])


def _may_request(own: str, channel: str, topic: str) -> bool:
    if channel == CellChannel.AUX_COMMUNICATION and topic in SUBMISSIONS:
        return is_valid_admin_client_name(own)
    return _is_listed(CLIENT_REQUESTS, channel, topic)
