"""Send a federation's task to each site, collect the parsed answers, and report the progress."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from shared_components.common import step_file
from shared_components.common.progress import Step
from shared_components.common.sanitise import one_line
from shared_components.core.method import Update
from shared_components.federation.messages import FederationError, Message, RejectedUpdate, Reply, total_bytes
from shared_components.federation.messages.parse import parse_reply
from shared_components.federation.messages.stored import HELD
from shared_components.federation.protocol import Answers, Ask
from shared_components.federation.server.published_models import task_of
from shared_components.federation.server.runner import ServerRunner
from shared_components.flare import memory, processes, wire
from shared_components.flare.console import Console
from shared_components.flare.paths import is_simulator, last_error
from shared_components.flare.timeouts import Timeouts, flare_timeout
from shared_components.flare.workspaces import Workspace
from shared_components.reporting.tensorboard import progress_line, write_scalars

logger = logging.getLogger(__name__)


class Stopped(FederationError):
    """FLARE has ended a job in production: an administrator stopped it, or the server ends."""


class Exchange:
    """Answers of some sites to one task, collected by FLARE's threads and read by the controller."""

    def __init__(self, sites: Iterable[str], timeouts: Timeouts) -> None:
        self.replies: dict[str, Reply] = {}
        self.failures: dict[str, str] = {}
        self.late: list[str] = []  # sites that count as absent and may still work on the task
        self._pending = set(sites)
        self._lock = threading.Lock()
        self.useful = 0  # replies that count as sufficient, set by the reader
        self._timeouts = timeouts

    @property
    def pending(self) -> list[str]:
        """Sites that have not answered, sorted."""
        with self._lock:
            return sorted(self._pending)

    def reply(self, site: str, reply: Reply) -> bool:
        """Accept a site's answer if it is the first and not too late; return whether it was accepted."""
        return self._settle(site, self.replies, reply)

    def fail(self, site: str, reason: str) -> bool:
        """Record why a site has no answer, unless it has an answer; return whether the reason was recorded."""
        return self._settle(site, self.failures, reason.removeprefix(f"site {site}: "))

    def hand_over(self) -> dict[str, Reply]:
        """Return the replies and drop them here: FLARE's tasks, which refer to this object, outlive their round."""
        with self._lock:
            replies, self.replies = self.replies, {}
        return replies

    def close(self, reason: str) -> None:
        """Count every site without an answer as absent; later answers do not count."""
        self.late += [site for site in self.pending if self.fail(site, reason)]

    def expire(self, now: float) -> None:
        """Close the exchange if a timeout has passed."""
        if reason := self._timeouts.why_expired(self.useful, now):
            self.close(reason)

    def _settle(self, site: str, into: dict, value: object) -> bool:
        with self._lock:
            if site not in self._pending:
                return False
            into[site] = value
            self._pending.discard(site)
            return True


@dataclass
class SiteTasks:
    """Tasks of a run, one per site, and reports of their progress: lines, TensorBoard, the remaining time."""

    _controller: Controller  # sends and cancels FLARE's tasks
    _server: ServerRunner
    _console: Console
    _workspace: Workspace | None  # of a simulator
    _lost: dict[str, str]  # in production, sites that no longer work on this job, with reasons
    _late: list[Path]  # receives the folders of the sites that have not answered the newest task
    _read_lost: Callable[[], None]  # adds lost sites, once a second
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
        return isinstance(self._server.judge(site, reply), Update)

    def exchange(self, fl_ctx: FLContext, abort_signal: Signal, ask: Ask) -> Answers:
        """Send each site its own message; wait for all answers, or for sufficient answers and the grace time.

        FederationError: FLARE has ended the job; `Stopped` in production.
        """
        job, folder = self._server.job, self._server.folder
        timeouts = Timeouts(time.monotonic(), ask.needed, job.grace_seconds, job.longest_wait_seconds)
        exchange = Exchange(ask.messages, timeouts)
        sent = sum(total_bytes(message.pieces) for message in ask.messages.values())  # replies are about as large
        large = ask.task in ("round", "finish") and sent > HELD
        wire.receive_in_files(fl_ctx.get_engine(), folder / "server" / "received" if large else None)
        tasks = {site: self._task(ask.task, message, exchange) for site, message in ask.messages.items()}
        title = f"round {self._server.state.round + 1}/{job.rounds}" if ask.task == "round" else ask.task
        self._console.show(  # a site without a step file is about to begin
            title, lambda: {site: step_file.read_step(folder / site) or Step("waiting") for site in exchange.pending}
        )
        for site, task in tasks.items():
            processes.forget(folder / site)
            step_file.forget(folder / site)
            if site not in self._lost:
                self._controller.send(task=task, fl_ctx=fl_ctx, targets=[site])
        self._wait(ask.task, exchange, abort_signal)
        self._late[:] = [folder / site for site in exchange.late]
        for task in tasks.values():
            self._controller.cancel_task(task, fl_ctx=fl_ctx)
        if abort_signal.triggered:
            raise self._ended(title, exchange, folder, fl_ctx)
        return Answers(exchange.hand_over(), exchange.failures)

    def _wait(self, task: str, exchange: Exchange, abort_signal: Signal) -> None:
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
            for site in [site for site in waiting if site in self._lost]:
                exchange.fail(site, self._lost[site])
            exchange.expire(now)
            time.sleep(0.02)
        self._console.look()

    def _ended(self, title: str, exchange: Exchange, folder: Path, fl_ctx: FLContext) -> FederationError:
        _note_dead(exchange, folder)
        if not is_simulator(fl_ctx):
            failures = Answers({}, exchange.failures).reasons() or "no site had failed"
            why = f"FLARE ended the job in {title}: an administrator stopped it, or the server ends"
            return Stopped(f"{why}; {failures}; still at work: {', '.join(exchange.pending) or 'none'}")
        hint = last_error(exchange.pending[0], fl_ctx) if exchange.pending else ""
        exchange.close("no answer")
        return FederationError(f"FLARE ended task {title!r}: {Answers({}, exchange.failures).reasons()}{hint}")

    def _task(self, name: str, message: Message, exchange: Exchange) -> Task:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            site = client_task.client.name
            answer = read_reply(client_task.result, name)
            client_task.result = None  # the message contains the tensors now; do not keep them twice
            used = exchange.fail(site, answer) if isinstance(answer, str) else exchange.reply(site, answer)
            if not used:
                logger.warning("a second or late answer of %s to task %s is not used", site, name)

        def done(task: Task, fl_ctx: FLContext) -> None:
            status, reason = task.completion_status, f"its task ended with {task.completion_status}"
            if status == TaskCompletionStatus.CLIENT_DEAD:
                reason = "FLARE has heard nothing from it for too long"
            for site in task.targets or []:
                exchange.fail(getattr(site, "name", site), reason)
            # empty the task: Python frees its reference cycle only many rounds and models later
            task.data = Shareable()
            task.client_tasks.clear()
            task.last_client_task_map.clear()

        timeout = flare_timeout(self._server.job)
        return Task(name, wire.to_shareable(message), timeout=timeout, result_received_cb=received, task_done_cb=done)


def _note_dead(exchange: Exchange, folder: Path) -> None:
    """Count sites as absent if their process has died during the task."""
    for site in [site for site in exchange.pending if processes.died(folder / site)]:
        exchange.fail(site, "its process died while it worked on its task")


def read_reply(result: Shareable, task: str) -> Reply | str:
    """Return a site's parsed reply, or the reason why there is none."""
    try:
        if refusal := result.get_header(wire.ERROR):
            return one_line(refusal) if isinstance(refusal, str) else "it refuses and gives no reason"
        code = result.get_return_code()
        if code != ReturnCode.OK:
            return f"FLARE reports {one_line(code, 80)}; the site's log has the reason"
        return parse_reply(task, wire.from_wire(result))
    except RejectedUpdate as error:
        return str(error)
    except Exception as error:  # a malformed reply costs its site the round, and must not end this thread
        return f"its answer cannot be read: {type(error).__name__}: {one_line(error, 200)}"
