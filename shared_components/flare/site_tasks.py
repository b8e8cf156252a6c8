"""Send a federation's task to each site, collect the parsed answers, and report the progress."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from shared_components.common import step_file
from shared_components.common.counted import first_few
from shared_components.common.progress import Step
from shared_components.core.method import Update
from shared_components.federation.messages import FederationError, Message, Reply
from shared_components.federation.protocol import Answers, Ask
from shared_components.federation.regions import answers_of_region, messages_by_region, sites_by_region
from shared_components.federation.server.published_models import task_of
from shared_components.federation.server.runner import ServerRunner
from shared_components.flare import memory, processes, wire
from shared_components.flare.console import Console
from shared_components.flare.exchange import Exchange, is_large, read_answer, read_reply
from shared_components.flare.patches.cells import LOST_SITES
from shared_components.flare.paths import is_simulator, last_error
from shared_components.flare.timeouts import timeouts_of
from shared_components.flare.workspaces import Workspace
from shared_components.reporting.tensorboard import progress_line, write_scalars

logger = logging.getLogger(__name__)


class Stopped(FederationError):
    """FLARE has ended a job in production: an administrator stopped it, or the server ends."""


@dataclass
class SiteTasks:
    """Tasks of a run, one per site, and reports of their progress: lines, TensorBoard, the remaining time."""

    _controller: Controller  # sends and cancels FLARE's tasks
    _server: ServerRunner
    _console: Console
    _workspace: Workspace | None  # of a simulator
    _lost: dict[str, str]  # in production, sites and nodes that no longer work on this job, with reasons
    _late: list[Path]  # receives the folders of the sites that have not answered the newest task
    _read_lost: Callable[[], None]  # adds lost sites, once a second
    _track: Callable[[dict[str, Any]], None]  # sends a site's record to the server's tracker
    _relayed: bool = False  # whether the server asks the regions' nodes instead of the sites
    _round_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scalars = self._server.folder / "server" / "tensorboard"

    def after_round(self, record: dict[str, Any]) -> None:
        """Record the seconds of a round, and write its scalars."""
        memory.let_go()
        self._round_seconds.append(record["seconds_wall"] + record.get("seconds_training", 0.0))
        write_scalars(self._scalars, record)

    def _is_valid_update(self, site: str, reply: Reply) -> bool:
        """Print the line of an update that has just arrived, write its scalars, and judge it."""
        record = self._server.note_reply(site, reply)
        recent, rounds = self._round_seconds[-5:], self._server.job.rounds
        left = (rounds - self._server.state.round) * sum(recent) / len(recent) if recent else None
        metric = task_of(self._server.job, self._server.state.profiles[site].card).metrics[0]
        self._console.say(progress_line(record, rounds=rounds, seconds_left=left, metric=metric))
        write_scalars(self._scalars, record)
        self._track(record)
        return isinstance(self._server.judge(site, reply), Update)

    def exchange(self, fl_ctx: FLContext, abort_signal: Signal, ask: Ask) -> Answers:
        """Send each site its own message; wait for all answers, or for sufficient answers and the grace time.

        FederationError: FLARE has ended the job; `Stopped` in production.
        """
        job, folder = self._server.job, self._server.folder
        exchange = Exchange(ask.messages, timeouts_of(job, ask.needed, regions=self._relayed))
        received = folder / "server" / "received" if is_large(ask) else None
        wire.receive_in_files(wire.server_cell(fl_ctx.get_engine()), received)
        present = replace(ask, messages={s: message for s, message in ask.messages.items() if s not in self._lost})
        for site in set(ask.messages) - set(present.messages):
            exchange.fail(site, self._lost[site])
        messages = messages_by_region(present, self._server) if self._relayed else present.messages
        tasks = {party: self._task(present, party, message, exchange) for party, message in messages.items()}
        title = f"round {self._server.state.round + 1}/{job.rounds}" if ask.task == "round" else ask.task
        self._console.show(  # a site without a step file is about to begin
            title, lambda: {site: step_file.read_step(folder / site) or Step("waiting") for site in exchange.pending}
        )
        for site in ask.messages:
            processes.forget(folder / site)
            step_file.forget(folder / site)
        for party, task in tasks.items():
            if party not in self._lost:
                self._controller.send(task=task, fl_ctx=fl_ctx, targets=[party])
        self._wait(ask.task, exchange, abort_signal, fl_ctx)
        self._late[:] = [folder / site for site in exchange.late]
        for task in tasks.values():
            self._controller.cancel_task(task, fl_ctx=fl_ctx)
        if abort_signal.triggered:
            raise self._ended(title, exchange, folder, fl_ctx)
        return Answers(exchange.hand_over(), exchange.failures)

    def _wait(self, task: str, exchange: Exchange, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Return when every site has answered or counts as absent, or when FLARE aborts the job."""
        seen: set[str] = set()
        checked = 0.0
        while not abort_signal.triggered:
            now, waiting = time.monotonic(), exchange.pending
            for site in [site for site in list(exchange.replies) if site not in seen]:
                seen.add(site)
                exchange.useful += task != "round" or self._is_valid_update(site, exchange.replies[site])
            if not waiting:
                break
            if now - checked > 1:
                checked = now
                _note_dead(exchange, self._server.folder)
                if self._workspace is not None:
                    self._workspace.refuse_if_emptied()
                self._console.look()
                self._read_lost()
            self._fail_lost(exchange, fl_ctx)
            exchange.expire(now)
            time.sleep(0.02)
        self._console.look()

    def _ended(self, title: str, exchange: Exchange, folder: Path, fl_ctx: FLContext) -> FederationError:
        _note_dead(exchange, folder)
        if not is_simulator(fl_ctx):
            failures = Answers({}, exchange.failures).reasons() or "no site had failed"
            why = f"FLARE ended the job in {title}: an administrator stopped it, or the server ends"
            return Stopped(f"{why}; {failures}; still at work: {first_few(exchange.pending) or 'none'}")
        hint = last_error(exchange.pending[0], fl_ctx) if exchange.pending else ""
        exchange.close("no answer")
        return FederationError(f"FLARE ended task {title!r}: {Answers({}, exchange.failures).reasons()}{hint}")

    def _fail_lost(self, exchange: Exchange, fl_ctx: FLContext) -> None:
        """Count lost sites, or all sites of lost nodes, as absent."""
        lost = {site: reason for site, reason in self._lost.items() if site in exchange.pending}
        regions = sites_by_region(self._server.job, dict.fromkeys(exchange.pending)) if self._relayed else {}
        for region, sites in regions.items():
            reason = f"the node of its region {region}: {self._lost[region]}" if region in self._lost else ""
            mine = {site: lost.pop(site) for site in sites if site in lost}
            if reason:
                lost |= dict.fromkeys(sites, reason)
            elif set(mine) - exchange.announced:  # the node decides: it may have a site's update already
                exchange.announced |= set(mine)
                request, options = Shareable({LOST_SITES: mine}), {"fl_ctx": fl_ctx, "optional": True}
                fl_ctx.get_engine().send_aux_request([region], LOST_SITES, request, timeout=0, **options)
        for site, reason in lost.items():
            exchange.fail(site, reason)

    def _read(self, ask: Ask, party: str, sites: list[str], result: Shareable) -> Answers:
        """Return the parsed replies of a site, or of a region's sites."""
        if not self._relayed:
            reply = read_reply(result, ask.task)
            return Answers({}, {party: reply}) if isinstance(reply, str) else Answers({party: reply})
        read = partial(answers_of_region, self._server, ask.task, party, asked=sites)
        answers = read_answer(result, read)
        if isinstance(answers, str):
            return Answers({}, dict.fromkeys(sites, f"the node of its region {party}: {answers}"))
        return Answers(answers.replies, dict.fromkeys(sites, f"no answer by way of {party}") | dict(answers.failures))

    def _task(self, ask: Ask, party: str, message: Message, exchange: Exchange) -> Task:
        """Return FLARE's task for a site, or for the node of a region."""
        name, sites = ask.task, [party]
        if self._relayed:
            sites = sites_by_region(self._server.job, ask.messages)[party]

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers = self._read(ask, party, sites, client_task.result)
            client_task.result = None  # the message contains the tensors now; do not keep them twice
            used = [exchange.reply(site, reply) for site, reply in answers.replies.items()]
            used += [exchange.fail(site, reason) for site, reason in answers.failures.items()]
            if not any(used):
                logger.warning("a second or late answer of %s to task %s is not used", party, name)

        def done(task: Task, fl_ctx: FLContext) -> None:
            status, reason = task.completion_status, f"its task ended with {task.completion_status}"
            if status == TaskCompletionStatus.CLIENT_DEAD:
                reason = "FLARE has heard nothing from it for too long"
            for site in sites if task.targets else ():
                exchange.fail(site, reason if site == party else f"the node of its region {party}: {reason}")
            # empty the task: Python frees its reference cycle only many rounds and models later
            task.data = Shareable()
            task.client_tasks.clear()
            task.last_client_task_map.clear()

        timeout = exchange.timeouts.flare
        return Task(name, wire.to_shareable(message), timeout=timeout, result_received_cb=received, task_done_cb=done)


def _note_dead(exchange: Exchange, folder: Path) -> None:
    """Count sites as absent if their process has died during the task."""
    for site in [site for site in exchange.pending if processes.died(folder / site)]:
        exchange.fail(site, "its process died while it worked on its task")
