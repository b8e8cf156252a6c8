"""The server's FLARE component: a thin shell over `shared_components.federation.server`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from shared_components.federation.messages import FederationError, Job, Message
from shared_components.federation.progress import progress_line, write_scalars
from shared_components.federation.server import ServerRunner, open_run
from shared_components.federation.store import RESUME_VARIABLE
from shared_components.flare import last_words, wire
from shared_components.flare.places import is_simulator, runs_folder, workspace_root

logger = logging.getLogger(__name__)


@dataclass
class Exchange:
    """The answers to one round of tasks as they come in; FLARE's threads write, the controller reads."""

    pending: set[str]
    replies: dict[str, Message] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def settle(self, site: str, *, reply: Message | None = None, failure: str = "") -> bool:
        """Note a site's answer; only its first counts. Return whether this was it."""
        with self.lock:
            if site not in self.pending:
                return False
            self.pending.discard(site)
            if reply is not None:
                self.replies[site] = reply
            else:
                self.failures[site] = failure
            return True

    def close(self, reason: str) -> None:
        """Count every site that has not answered as absent."""
        for site in list(self.pending):
            self.settle(site, failure=reason)


class FederationController(Controller):
    """Run a job: enrol the sites, send each its own message per round, aggregate, finish, report.

    Args:
        name, bundle, method, arguments, training, rounds, min_sites, grace_seconds, longest_wait_seconds,
            largest_change, synthetic: see :class:`shared_components.federation.messages.Job`.
    """

    def __init__(self, **job: Any) -> None:
        super().__init__(task_check_period=0.05)
        wire.register()
        self.job = Job.from_json(job)
        self.server: ServerRunner | None = None
        self._round_seconds: list[float] = []

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare: the run begins in control_flow, where errors can be told."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to release."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the job; whatever ends it early becomes one sentence and a non-zero exit."""
        try:
            self._run(abort_signal, fl_ctx)
        except FederationError as error:
            self._give_up(str(error), fl_ctx)
        except Exception as error:
            logger.exception("the job failed")
            self._give_up(f"{type(error).__name__}: {error}", fl_ctx)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Say whose answer came too late; it is not used."""
        logger.warning("the answer of %s to task %s came too late and is not used", client.name, task_name)

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        import torch

        torch.set_num_threads(1)  # one order of additions, whatever the machine
        folder = open_run(self.job, runs_folder(fl_ctx), resume=os.environ.get(RESUME_VARIABLE) == "1")
        sites = [client.name for client in fl_ctx.get_engine().get_clients()]
        self.server = server = ServerRunner(self.job, sites, folder)
        if server.resume():
            logger.info("resuming %s at round %d of %d", folder, server.round + 1, self.job.rounds)
        else:
            logger.info(
                "%s: %d sites, %d rounds; state in %s", self.job.name, len(sites), self.job.rounds, folder
            )
        enrolled = self._exchange(
            "enrol", server.enrol_messages(), fl_ctx, abort_signal, needed=len(server.sites)
        )
        if enrolled.failures:
            raise FederationError("; ".join(enrolled.failures.values()) + "; no round was started")
        server.enrolled(enrolled.replies)
        while server.round < self.job.rounds:
            self._one_round(server, fl_ctx, abort_signal)
        done = self._exchange("finish", server.round_messages(), fl_ctx, abort_signal, needed=server.needed)
        server.finished(done.replies)
        for site, reason in done.failures.items():
            logger.warning("%s has not finished: %s", site, reason)
        self._report(server, fl_ctx)

    def _one_round(self, server: ServerRunner, fl_ctx: FLContext, abort_signal: Signal) -> None:
        started = time.perf_counter()
        answers = self._exchange("round", server.round_messages(), fl_ctx, abort_signal, needed=server.needed)
        record = server.finish_round(answers.replies, answers.failures)
        self._round_seconds.append(time.perf_counter() - started)
        left = (
            (self.job.rounds - server.round) * sum(self._round_seconds[-5:]) / len(self._round_seconds[-5:])
        )
        for site in answers.replies:
            site_record = server.record(site)
            logger.info(progress_line(site_record, rounds=self.job.rounds, seconds_left=left))
            write_scalars(server.folder / "server" / "tensorboard", site_record)
        write_scalars(server.folder / "server" / "tensorboard", record)

    def _exchange(
        self,
        task: str,
        messages: Mapping[str, Message],
        fl_ctx: FLContext,
        abort_signal: Signal,
        *,
        needed: int,
    ) -> Exchange:
        """Send each site its own message and wait for all, or for enough of them and the grace time.

        Raises:
            FederationError: FLARE aborted the job meanwhile.
        """
        exchange = Exchange(pending=set(messages))
        tasks = {site: self._task(task, message, exchange) for site, message in messages.items()}
        for site, one in tasks.items():
            self.send(task=one, fl_ctx=fl_ctx, targets=[site])
        started, enough_since = time.monotonic(), None
        while exchange.pending and not abort_signal.triggered:
            now = time.monotonic()
            if len(exchange.replies) >= needed:
                enough_since = enough_since or now
                if now - enough_since > self.job.grace_seconds:
                    exchange.close(
                        f"it had not answered {self.job.grace_seconds:g} s after enough others had"
                    )
            if now - started > self.job.longest_wait_seconds:
                exchange.close(f"it did not answer within {self.job.longest_wait_seconds:g} s")
            time.sleep(0.02)
        for one in tasks.values():
            self.cancel_task(one, fl_ctx=fl_ctx)
        if abort_signal.triggered:
            exchange.close("its process ended or could not be started; its log says why")
            lost = ", ".join(f"{site} ({why})" for site, why in exchange.failures.items())
            raise FederationError(f"the job was aborted during task {task}; no answer of {lost}")
        return exchange

    def _task(self, name: str, message: Message, exchange: Exchange) -> Task:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            site = client_task.client.name
            reply, failure = _read_reply(site, client_task.result)
            client_task.result = None  # the tensors are in the message now; do not hold them twice
            if not exchange.settle(site, reply=reply, failure=failure):
                logger.warning("a second answer of %s to task %s is not used", site, name)

        def done(task: Task, fl_ctx: FLContext) -> None:
            for site in task.targets or []:
                exchange.settle(
                    getattr(site, "name", site), failure=f"its task ended with {task.completion_status}"
                )

        timeout = max(1, round(self.job.longest_wait_seconds))
        return Task(
            name, wire.to_shareable(message), timeout=timeout, result_received_cb=received, task_done_cb=done
        )

    def _build_page(self, server: ServerRunner, fl_ctx: FLContext) -> Path:
        from shared_components.reporting.report import build_report

        root = workspace_root(fl_ctx)
        folder = root.parent / "report" if is_simulator(fl_ctx) else server.folder / "report"
        return build_report(server.folder, folder / "index.html")

    def _report(self, server: ServerRunner, fl_ctx: FLContext) -> None:
        from shared_components.reporting.tables import demo_text

        page = self._build_page(server, fl_ctx)
        text = f"{demo_text(server.folder)}\nmodels  {server.folder}/<site>/model.safetensors\nreport  {page}"
        logger.info("finished\n%s", text)
        last_words.say(f"surgfl: {self.job.name} finished {self.job.rounds} rounds; report {page}")

    def _give_up(self, reason: str, fl_ctx: FLContext) -> None:
        if self.server is not None and self.server.note_failure(reason):
            self._build_page(self.server, fl_ctx)
        last_words.say(f"surgfl: job {self.job.name} FAILED: {reason}")
        self.system_panic(reason, fl_ctx)


def _read_reply(site: str, result: Shareable) -> tuple[Message | None, str]:
    """Return a reply, or why there is none."""
    if result.get_header(wire.ERROR):
        return None, result.get_header(wire.ERROR)
    code = result.get_return_code()
    if code != ReturnCode.OK:
        return None, f"site {site}: FLARE reports {code}; the site's log says why"
    try:
        return wire.from_wire(result), ""
    except (ValueError, KeyError) as error:
        return None, f"site {site}: {error}"
