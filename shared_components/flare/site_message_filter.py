"""At a site: what the server may send to the site's own process and, through it, to those of its jobs.

FLARE 2.9 has a site answer whatever the server asks: by a message's own word without any authorisation, it lists its
processes, changes its log or its server, fires events in a running job, and hands on in anybody's name. The server of
a good run asks for three things of a site's process of a job, and for what `site_commands` lists of the site's own.
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
from shared_components.flare.server_message_filter import ANY, IN_WHOSE_NAME, NOT_TAKEN, asked_for, may_ask

logger = logging.getLogger(__name__)

OF_ALL = {
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.RETURN_ONLY: ANY,  # answers that are streams
}
OF_A_SITE = {**OF_ALL, CellChannel.CLIENT_MAIN: ANY}  # `site_commands` reads what is asked for
OF_A_JOB = {
    **OF_ALL,
    CellChannel.AUX_COMMUNICATION: frozenset({ReservedTopic.END_RUN}),
    OBJ_DOWNLOADER_CHANNEL: frozenset({OBJ_DOWNLOADER_TOPIC}),  # tensors of an answer that the site has given
}
"""What the server asks of a site's process and of that of a job there, by channel and topic; nothing else passes."""


class SiteBoundary:
    """Refuses what the server has not to send."""

    def __init__(self) -> None:
        self._refusals = Refusals(logger)

    def passes(self, message: Message, own: str, *, own_process: bool) -> bool:
        """Say whether a process of a site takes a message or hands it on; log why not.

        Args:
            message: As it has come.
            own: The name of the process's cell, ``hospital-a`` or ``hospital-a.<job>``.
            own_process: Whether it came over the connection of the site's processes with each other. What is in
                the name of the site is then taken; the rest is the server's, handed on by the site's own process.
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
        said = str(message.get_header(key, FQCN.ROOT_SERVER))
        if FQCN.get_root(said) not in (FQCN.ROOT_SERVER, _who_handed_on(key, own)):
            return f"it is in the name of {one_line(said)}"
    for key, why in NOT_TAKEN.items():
        if message.get_header(key):
            return why
    asked = asked_for(message)
    if asked is None or may_ask(OF_A_JOB if FQCN.get_parent(to) else OF_A_SITE, *asked):
        return None
    return f"no server has to ask {one_line(to)} for {asked[0]} {asked[1]}"


def _who_handed_on(key: str, own: str) -> str:
    """Return whose name may stand in a header beside the server's: the site's own process hands on to its jobs."""
    return FQCN.get_root(own) if key == MessageHeaderKey.FROM_CELL and FQCN.get_parent(own) else ""
