"""The site's FLARE component, which runs `shared_components.federation.site` for FLARE's tasks."""

import logging
import os
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from shared_components.common import step_file
from shared_components.common.atomic import NotWritten
from shared_components.common.progress import Listener, listening
from shared_components.common.progress_display import StepLog
from shared_components.federation.runs.run_folder import lock_run
from shared_components.flare import memory, processes, wire
from shared_components.flare.log_lines import mark_lines
from shared_components.flare.patches.cells import read_cell
from shared_components.flare.patches.connections import number_streams, restrict_connections
from shared_components.flare.paths import is_node, is_simulator, local_folder, runs_folder
from shared_components.flare.region_node import RegionNode
from shared_components.flare.timeouts import repeat_requests_soon

logger = logging.getLogger(__name__)

THREADS_VARIABLE = "SURGFL_CPU_THREADS"


class SiteExecutor(Executor):
    """Answer the controller's tasks `enrol`, `round`, `unmask` and `finish`.

    Only files keep its state between tasks, since a simulator without `-t` starts a process per task.
    """

    def __init__(self) -> None:
        super().__init__()
        wire.register()
        restrict_connections()
        number_streams()
        self._lock = ExitStack()  # lock of a deployment's run, which nobody may remove while this process lives
        self._run: Path | None = None
        self._node: RegionNode | None = None  # at a region's node
        threading.Thread(target=_import_ahead, name="imports", daemon=True).start()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Prepare for a job's start, and end the processes of further GPUs at its end."""
        if event_type == EventType.START_RUN and not is_simulator(fl_ctx):
            self._prepare(fl_ctx)
        if event_type == EventType.END_RUN:
            from shared_components.federation.site.replica_processes import stop_replicas

            stop_replicas()

    def _prepare(self, fl_ctx: FLContext) -> None:
        """Behind a relay, prepare for its failures; a region's node begins to answer its sites."""
        engine: Any = fl_ctx.get_engine()
        if read_cell(engine.get_cell().get_fqcn()).relay:
            repeat_requests_soon(engine.client)
        if is_node(fl_ctx):
            self._node = RegionNode(fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Run one task; a refusal is returned as a sentence."""
        from shared_components.federation.messages import FederationError

        site = f"site {fl_ctx.get_identity_name()}"
        try:
            return wire.to_shareable(self._answer(task_name, shareable, fl_ctx, abort_signal))
        except (FederationError, NotWritten) as error:
            reason = f"{site}: {error}" if isinstance(error, NotWritten) else str(error)
            logger.error("%s", reason)
        except Exception as error:
            reason = f"{site}: {type(error).__name__}: {error}"
            logger.exception("task %s failed", task_name)
        reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
        # outside a simulator the reason, which may contain file names, stays in the site's own log
        sentence = reason if is_simulator(fl_ctx) else f"{site} refused; the reason is in its own log"
        reply.set_header(wire.ERROR, sentence)
        return reply

    def _answer(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal):
        if self._node is not None:
            return self._node.answer(task_name, shareable, fl_ctx, abort_signal)
        import torch

        from shared_components.core.initial_weights import start_weights
        from shared_components.federation.messages import SiteRefusal
        from shared_components.federation.messages.parse import parse_request
        from shared_components.federation.runs.run_folder import OUTLIVES, point_latest_to
        from shared_components.federation.secure_sums.identity import kit_identity
        from shared_components.federation.setup.find_site import find_site
        from shared_components.federation.site.agreed_job import site_folder
        from shared_components.federation.site.runner import SiteRunner

        torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, "1")))
        name, simulator = fl_ctx.get_identity_name(), is_simulator(fl_ctx)
        runs, local = runs_folder(fl_ctx), local_folder(fl_ctx)
        scenes = runs / "scenes" if simulator else None
        request = parse_request(task_name, wire.from_wire(shareable))
        job, pool = request.job, request.pool
        if pool and not simulator:
            raise SiteRefusal(f"site {name}: only a simulation can pool the sites' frames; choose a federated method")
        stop, find = partial(getattr, abort_signal, "triggered"), partial(find_site, local=local, scenes=scenes)
        runner = SiteRunner(
            name, folder=runs, start_weights=start_weights(), stop=stop,
            find_site=lambda job, index: find(pool[index] if pool else name, job=job, index=index),
            identity=None if simulator else kit_identity(local.parent / "startup"),
        )  # fmt: skip
        own = site_folder(runs, job.name, request.run, name)
        folder = own.parent
        listener: Listener = StepLog(f"{task_name} {request.round + 1}/{job.rounds}", logger)
        if simulator:
            # the server, on the same machine, watches whether this process is alive, and its progress
            processes.announce(own, os.getpid())
            listener = step_file.StepFile(own)
        elif folder != self._run:
            mark_lines()
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.close()
            self._lock.enter_context(lock_run(folder, wait=OUTLIVES, stop=stop))
            self._run = folder
        with listening(listener):
            reply = runner.answer(request)
        memory.let_go()
        if task_name == "finish" and not simulator:
            point_latest_to(folder)
            logger.info("site %s: models in %s", name, folder.with_name("latest") / name)
        return reply


def _import_ahead() -> None:
    """Import a task's modules while FLARE is still connecting, which is mostly waiting."""
    import shared_components.federation.site.runner  # noqa: F401

    memory.freeze_objects()
