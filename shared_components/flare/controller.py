"""The server's FLARE component, which runs `shared_components.federation.server` with FLARE's tasks."""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from shared_components.common.atomic import NotWritten
from shared_components.common.counted import counted, first_few
from shared_components.common.progress import report_progress
from shared_components.core.initial_weights import start_weights
from shared_components.core.method import site_order
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.protocol import run_federation
from shared_components.federation.runs.run_folder import link_models, lock_run, note_submission, open_run, split_resume
from shared_components.federation.runs.store import RESUME_VARIABLE
from shared_components.federation.secure_sums.identity import Project
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.setup.find_site import SERVER, find_site
from shared_components.flare import console, memory, paths, processes, wire
from shared_components.flare.job_settings import read_job, refuse_substituted
from shared_components.flare.log_lines import mark_lines
from shared_components.flare.patches import final_message
from shared_components.flare.patches.bad_replies import sanitise_submissions, survive_bad_messages
from shared_components.flare.patches.connections import number_streams, restrict_connections
from shared_components.flare.patches.site_losses import read_lost
from shared_components.flare.patches.worker_names import separate_worker_names
from shared_components.flare.paths import app_config, is_simulator, job_folder, local_folder, runs_folder
from shared_components.flare.results import build_page
from shared_components.flare.site_tasks import SiteTasks, Stopped
from shared_components.flare.tracking import VARIABLE, check_tracker, track
from shared_components.flare.workspaces import Unusable, Workspace, exit_simulator, lock_workspace

logger = logging.getLogger(__name__)


class FederationController(Controller):
    """Run a job: enrol the sites, send each site its own message per round, aggregate, finish, report.

    ``job`` has the fields of :class:`shared_components.federation.messages.Job`. ``resume`` is ``latest``, a run's name
    or FLARE's id of a job that worked on the run, each also with ``@ROUNDS``; False begins a new run. A simulator
    resumes the newest run if the environment variable ``SURGFL_RESUME`` is 1.
    """

    def __init__(self, *, resume: bool | str = False, **job: Any) -> None:
        super().__init__(task_check_period=0.05)
        wire.register()
        survive_bad_messages()
        restrict_connections()
        number_streams()
        separate_worker_names()  # here, since the controller's process also starts a simulator's workers
        self.resume = resume
        self.settings = job  # parsed in control_flow, where errors can be reported
        self.server: ServerRunner | None = None
        self._workspace: Workspace | None = None  # only in a simulator
        self._late: list[Path] = []  # folders of the sites that have not answered the newest task
        self._lost: dict[str, str] = {}  # in production, sites that no longer work on this job, with reasons
        self._job_folder: Path | None = None  # only in production
        self._console: console.Console = console.LogConsole()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Prepare replies, log and console; the run begins in control_flow, where errors can be reported."""
        sanitise_submissions(fl_ctx.get_engine())
        if not is_simulator(fl_ctx):
            mark_lines()
            self._job_folder = job_folder(fl_ctx)
            self._read_lost()
        elif console.is_default(fl_ctx):
            workspace = paths.workspace_root(fl_ctx).parent
            console.mute_sites(fl_ctx, workspace)
            self._console = console.SimulatorConsole(workspace, present_sites(fl_ctx))

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the job; any error becomes one sentence and a non-zero exit status."""
        with self._console:
            try:
                self._run(abort_signal, fl_ctx)
            except (FederationError, NotWritten) as error:
                self._fail(str(error), fl_ctx, stopped=isinstance(error, Stopped))
                if isinstance(error, Unusable):
                    exit_simulator()
            except Exception as error:
                logger.exception("the job failed with an unexpected error")
                self._fail(f"{type(error).__name__}: {error}", fl_ctx)
            finally:
                for folder in self._late:  # a simulator waits for its workers before it ends
                    processes.end(folder)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Log a late answer."""
        logger.warning("the answer of %s to task %s came too late and is not used", client.name, task_name)

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        import torch

        torch.set_num_threads(1)  # one order of additions on every machine
        memory.freeze_objects()
        memory.keep_no_large_pieces()
        try:
            check_tracker(os.environ.get(VARIABLE, ""))
        except ValueError as error:
            raise FederationError(str(error)) from error
        with ExitStack() as stack:
            if is_simulator(fl_ctx):
                self._workspace = stack.enter_context(lock_workspace(paths.workspace_root(fl_ctx).parent, sys.argv))
                refuse_substituted(app_config(fl_ctx), self.settings)
            self.server = server = self._open(read_job(self.settings), fl_ctx)
            stack.enter_context(lock_run(server.folder))
            send = stack.enter_context(track(server.job.name, server.folder, fl_ctx))
            shared = self._workspace, self._lost, self._late, self._read_lost, send, bool(regions_of(fl_ctx))
            tasks = SiteTasks(self, server, self._console, *shared)
            run_federation(server, partial(tasks.exchange, fl_ctx, abort_signal), after_round=tasks.after_round)
            self._report(server, fl_ctx)

    def _open(self, job: Job, fl_ctx: FLContext) -> ServerRunner:
        """Begin or resume a run, and report it."""
        simulator, lost = is_simulator(fl_ctx), self._lost
        check_regions(job, regions_of(fl_ctx))
        run, after = split_resume(self._what_to_resume(fl_ctx))
        folder = open_run(job, runs_folder(fl_ctx), resume=run)
        if not simulator:
            note_submission(folder, fl_ctx.get_job_id())
        present = [site for site in present_sites(fl_ctx) if site not in lost]
        local, scenes = local_folder(fl_ctx), runs_folder(fl_ctx) / "scenes" if simulator else None
        server = ServerRunner(
            job, [*present, *lost], folder, start_weights=start_weights(),
            find_data=lambda job, index: find_site(SERVER, local=local, scenes=scenes, job=job, index=index),
            project=Project(local.parent / "startup") if job.secure_sums and not simulator else None,
        )  # fmt: skip
        name = folder if simulator else folder.name  # an administrator has no such folder
        rounds = counted(job.rounds, "round")
        if not server.resume(after):
            self._console.say(f"{job.name}: {counted(len(server.state.sites), 'site')}, {rounds}; run {name}")
            return server
        if missing := [site for site in server.state.sites if site not in present]:
            known = [f"{site}: {lost[site]}" for site in missing if site in lost]
            reasons = f"; {first_few(known, '; ')}" if known else ""
            raise FederationError(
                f"{folder} was begun with {first_few(missing)}, not here now{reasons}; start all of its sites, or "
                "begin a new run, without resume"
            )
        done = server.state.round == job.rounds
        where = f"after {rounds}" if done else f"at round {server.state.round + 1} of {job.rounds}"
        self._console.say(f"resuming run {name} {where}")
        return server

    def _what_to_resume(self, fl_ctx: FLContext) -> bool | str:
        if self.resume is not False and not (isinstance(self.resume, str) and self.resume):
            raise FederationError(
                f"config_fed_server.json: resume is {self.resume!r}; write false, 'latest', a run's name or a job's id"
            )
        return self.resume or (is_simulator(fl_ctx) and os.environ.get(RESUME_VARIABLE) == "1")

    def _read_lost(self) -> None:
        """Read which sites the server's own process has recorded as lost, see `patches.site_losses`."""
        if self._job_folder is not None:
            self._lost |= read_lost(self._job_folder)

    def _report(self, server: ServerRunner, fl_ctx: FLContext) -> None:
        from shared_components.reporting.score_tables import demo_text

        report_progress("reporting")
        page = build_page(server.folder, fl_ctx)
        outcome, rounds = f"report {page}", counted(server.job.rounds, "round")
        self._console.say(f"finished\n{demo_text(server.folder)}")
        if is_simulator(fl_ctx):
            models = paths.workspace_root(fl_ctx).parent / "models"
            link_models(server.folder, server.state.sites, models)
            outcome = f"models {models}, {outcome}"
            places = f"models  {models}/<site>/model.safetensors, and best.safetensors\nreport  {page}"
            self._console.say(f"{places}\nstate   {server.folder}")
        self._console.end()
        final_message.say(f"surgfl: {server.job.name} finished {rounds}; {outcome}", first=self._console.close)

    def _fail(self, reason: str, fl_ctx: FLContext, *, stopped: bool = False) -> None:
        prefix = console.STOPPED if stopped else console.FAILED
        if not is_simulator(fl_ctx):  # a simulator prints only the final message
            self._console.say(f"{prefix}{reason}")
        self._console.end()
        final_message.say(f"surgfl: job {self.settings.get('name', '?')} {prefix}{reason}", first=self._console.close)
        self.system_panic(reason, fl_ctx)
        try:
            if self.server is not None and self.server.note_failure(reason, "stopped" if stopped else "error"):
                build_page(self.server.folder, fl_ctx)
        except OSError as error:  # for example a full disk, which may be the reason itself
            logger.error("the reason could not be saved in the run's folder: %s", error)


def present_sites(fl_ctx: FLContext) -> list[str]:
    """Return the names of the sites that FLARE knows, without regions' nodes."""
    return [client.name for client in fl_ctx.get_engine().get_clients() if client.get_is_leaf() is not False]


def regions_of(fl_ctx: FLContext) -> dict[str, list[str]]:
    """Return the sites that connect through each region's node; empty if all sites connect to the server."""
    regions: dict[str, list[str]] = {}
    for client in fl_ctx.get_engine().get_clients():
        node, _, site = (client.get_fqsn() or "").rpartition(".")
        if node:
            regions.setdefault(node, []).append(site)
    return {region: site_order(regions[region]) for region in site_order(regions)}


def check_regions(job: Job, connected: Mapping[str, Sequence[str]]) -> None:
    """Raise FederationError if a job's regions are not the regions through which the sites connect."""
    if connected and any(not set(sites) <= set(job.regions.get(region, ())) for region, sites in connected.items()):
        raise FederationError(
            f"job {job.name}: its regions are not the regions through which the sites connect; write regions: "
            f"{json.dumps(connected)}"
        )
