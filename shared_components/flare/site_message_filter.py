"""At a site: which messages the server may send to the site's own process and, through it, to those of its jobs.

A site of FLARE 2.9 does whatever the server requests, without any authorisation: it lists its processes, changes its
log or its server, fires events in a running job, and forwards messages in anybody's name. In an honest run the server
makes three requests of a site's process of a job, and of the site's own those that `site_commands` lists.
"""

from __future__ import annotations

import logging

from nvflare.apis.fl_constant import ReservedTopic
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL, OBJ_DOWNLOADER_TOPIC

from shared_components.common.sanitise import one_line
from shared_components.flare.refusals import Refusals
from shared_components.flare.server_message_filter import ANY, IN_WHOSE_NAME, asked_for, may_ask, why_not_taken

logger = logging.getLogger(__name__)

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
        why = _why_not(message, own)
        if why is not None:
            self._refusals.say(f"a message of the server is refused: {why}")
        return why is None


def _why_not(message: Message, own: str) -> str | None:
    to = str(message.get_header(MessageHeaderKey.DESTINATION))
    if to != own and not to.startswith(f"{own}."):
        return f"it is for {one_line(to)}, and this is {own}"
    for key in IN_WHOSE_NAME:
        name = str(message.get_header(key, FQCN.ROOT_SERVER))
        # the site's own process forwards to its jobs
        forwarded = key == MessageHeaderKey.FROM_CELL and FQCN.get_parent(own)
        if FQCN.get_root(name) not in (FQCN.ROOT_SERVER, FQCN.get_root(own) if forwarded else ""):
            return f"it is in the name of {one_line(name)}"
    if why := why_not_taken(message):
        return why
    asked = asked_for(message)
    if asked is None or may_ask(OF_A_JOB if FQCN.get_parent(to) else OF_A_SITE, *asked):
        return None
    return f"no server has to ask {one_line(to)} for {asked[0]} {asked[1]}"
