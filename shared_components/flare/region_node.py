"""The process of a job at a region's node: it gives each site its task, and answers the server for all of them.

The connections are FLARE's own hierarchy: a site whose kit names a parent asks the parent's process of the job for
tasks, and sends its answers there. FLARE's gatherer (`edge/executors/hug.py`) would give all sites one message, and
believe the name in an answer. The node therefore answers these requests itself, by the cell that they come from.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ServerCommandKey, ServerCommandNames
from nvflare.apis.fl_constant import ReturnCode as FlareReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.fl_context_utils import gen_new_peer_ctx
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.private.defs import SpecialTaskName, TaskConstant, new_cell_message

from shared_components.common.sanitise import one_line
from shared_components.flare import wire
from shared_components.flare.log_lines import mark_lines
from shared_components.flare.patches.cells import LOST_SITES, read_cell
from shared_components.flare.paths import job_folder

if TYPE_CHECKING:  # imported late, like all modules of a task
    from shared_components.federation.messages import Message, Request
    from shared_components.federation.protocol import Answers, Ask
    from shared_components.federation.regions import Judge
    from shared_components.flare.exchange import Exchange

logger = logging.getLogger(__name__)

REQUEST_INTERVAL = 0.2  # seconds between a waiting site's requests, as in the jobs of nvflare_jobs


@dataclass(frozen=True)
class OpenTask:
    """The task that the node's sites work on."""

    id: str  # FLARE's id of the node's own task
    ask: Ask
    exchange: Exchange


class RegionNode:
    """The tasks of a region's sites in one job."""

    def __init__(self, fl_ctx: FLContext) -> None:
        mark_lines()
        self._open: OpenTask | None = None
        self._id, self._abort, self._received = "", Signal(), Path()  # of the current task
        self._peer = gen_new_peer_ctx(fl_ctx)
        self._cell = fl_ctx.get_engine().get_cell()
        for topic, answer in (
            (ServerCommandNames.GET_TASK, self._give_task),
            (ServerCommandNames.SUBMIT_UPDATE, self._take_answer),
        ):  # instead of FLARE's own handlers in `Communicator`
            self._cell.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic=topic, cb=answer)
        fl_ctx.get_engine().register_aux_message_handler(topic=LOST_SITES, message_handle_func=self._leave_out)

    def answer(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Message:
        """Return the answer to the server's task; ValueError if the server's message is malformed."""
        import torch

        from shared_components.federation.regions import answer_order

        torch.set_num_threads(1)
        self._id, self._abort = str(fl_ctx.get_prop(FLContextKey.TASK_ID)), abort_signal
        with TemporaryDirectory(prefix="received-", dir=job_folder(fl_ctx)) as folder:  # for large updates
            self._received = Path(folder)
            return answer_order(task, wire.from_wire(shareable), self._ask_sites)

    def _ask_sites(self, ask: Ask, request: Request, judge: Judge) -> Answers:
        from shared_components.federation.protocol import Answers
        from shared_components.flare.exchange import Exchange, is_large
        from shared_components.flare.timeouts import timeouts_of

        wire.receive_in_files(self._cell, self._received if is_large(ask) else None)
        exchange = Exchange(ask.messages, timeouts_of(request.job, ask.needed))
        self._open = OpenTask(self._id, ask, exchange)
        judged: set[str] = set()
        while exchange.pending and not self._abort.triggered:
            for site in [site for site in list(exchange.replies) if site not in judged]:
                judged.add(site)
                exchange.useful += judge(site, exchange.replies[site])
            exchange.expire(time.monotonic())
            time.sleep(0.02)
        exchange.close("the job has ended")
        self._open = None
        return Answers(exchange.hand_over(), exchange.failures)

    def _leave_out(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Stop waiting for the sites that the server has lost."""
        if (task := self._open) is not None:
            for site, reason in request.get(LOST_SITES, {}).items():
                task.exchange.fail(site, one_line(reason))
        return make_reply(FlareReturnCode.OK)

    def _give_task(self, request: CellMessage) -> CellMessage:
        """Return a site's own message; a site that has it, or is not asked, shall try again later."""
        task, site = self._open, _site_of(request)
        waits = task is None or site not in task.exchange.pending
        if task is None or waits or request.payload.get_header(ServerCommandKey.LAST_TASK_ID) == task.id:
            reply = Shareable()
            reply.set_header(TaskConstant.WAIT_TIME, REQUEST_INTERVAL)
            reply.set_header(FLContextKey.TASK_ID, "")
            reply.set_header(ServerCommandKey.TASK_NAME, SpecialTaskName.TRY_AGAIN)
        else:
            reply = wire.to_shareable(task.ask.messages[site])
            reply.set_header(FLContextKey.TASK_ID, task.id)
            reply.set_header(ServerCommandKey.TASK_NAME, task.ask.task)
        reply.set_peer_context(self._peer)
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, reply)

    def _take_answer(self, request: CellMessage) -> CellMessage:
        from shared_components.flare.exchange import read_reply

        task, site, result = self._open, _site_of(request), request.payload
        used = False
        if task is not None and isinstance(result, Shareable) and result.get_header(ReservedKey.TASK_ID) == task.id:
            reply = read_reply(result, task.ask.task)
            used = task.exchange.fail(site, reply) if isinstance(reply, str) else task.exchange.reply(site, reply)
        if not used:
            logger.warning("a second or late answer of %s is not used", site)
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, Shareable())


def _site_of(request: CellMessage) -> str:
    """Return the site that has sent a request; the relay has checked the name of its cell."""
    return read_cell(request.get_header(MessageHeaderKey.ORIGIN)).name
