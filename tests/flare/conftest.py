"""A controller and executors in this process, their messages through FLARE's serialiser but not its network."""

import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.stats_pool import StatsPoolManager
from nvflare.fuel.utils import fobs

from shared_components.common.atomic import write_json
from shared_components.flare.console import LogConsole
from shared_components.flare.controller import FederationController
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.patches import final_message
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.paths import app_config
from shared_components.reporting import report
from tests.federation.conftest import job_on_toy, narrow, no_pictures, scenes, toy_bundle  # noqa: F401 (fixtures)
from tests.flare.simulator import SERVER

SITES = ("site-1", "site-2", "site-3")


@pytest.fixture(autouse=True)
def no_page(monkeypatch, request):
    """Let a job end without its page, which takes as long as a toy's round, except in tests with `pictures`."""
    if not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(report, "build_report", lambda run, page: page)


def put_back(monkeypatch, *functions):
    """Give functions of FLARE their own code for one test, whoever has replaced them in this process."""
    for owner, name in functions:
        present = getattr(owner, name)
        own = getattr(present, REPLACES, present)
        static = isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
        monkeypatch.setattr(owner, name, staticmethod(own) if static else own)


def bare_cell(monkeypatch, name):
    """Return a cell of FLARE that is not connected; a process may have several of a name, in different tests."""
    monkeypatch.setattr(CoreCell, "ALL_CELLS", {})
    monkeypatch.setattr(StatsPoolManager, "pools", {})
    return CoreCell(name, "tcp://127.0.0.1:1", secure=False, credentials={})


class Place:
    """The parts of FLARE's context, engine and workspace that our components use."""

    def __init__(self, workspace: Path, name: str, *, simulator: bool = True, sites=SITES):
        self.workspace, self.name, self.simulator, self.sites = workspace, name, simulator, sites
        cell = SimpleNamespace(register_request_cb=lambda **_: None)
        self.server = SimpleNamespace(command_agent=SimpleNamespace(cell=cell))

    def get_identity_name(self):
        return self.name

    def get_job_id(self):
        return "simulate_job" if self.simulator else "0f1e-a-real-job"

    def get_prop(self, key, default=None):
        return self.simulator if key == FLContextKey.SIMULATE_MODE else default

    def get_engine(self):
        return self

    def get_workspace(self):
        return self

    def get_root_dir(self):
        return str(self.workspace / self.name)

    def get_run_dir(self, job):
        return str(self.workspace / self.name / job)

    def get_app_config_dir(self, job):
        return f"{self.get_run_dir(job)}/app_{self.name}/config"

    def get_clients(self):
        return [Client(name, "") for name in self.sites]


class ByHand(FederationController):
    """A controller whose tasks are answered at once by executors, or by ``answer(controller, site, task)``."""

    def __init__(self, workspace: Path, answer=None, **settings):
        super().__init__(**settings)
        self.workspace, self.answer = workspace, answer or ByHand.ask
        self.panics: list[str] = []
        self.sent: list = []
        self.given: list[tuple[str, str]] = []  # task and site, in the order of asking

    def ask(self, site, task):
        executor = SiteExecutor()
        result = executor.execute(task.name, copied(task.data), Place(self.workspace, site), Signal())
        return copied(result)

    def send(self, task, fl_ctx, targets, **_):
        self.sent.append(task)
        self.given.append((task.name, targets[0]))
        result = self.answer(self, targets[0], task)
        if result is not None:
            self.receive(targets[0], task, result, fl_ctx)

    def receive(self, site, task, result, fl_ctx=None):
        answered = ClientTask(Client(site, ""), task)
        answered.result = result
        task.result_received_cb(answered, fl_ctx)

    def cancel_task(self, task, *_, **__):
        task.completion_status = TaskCompletionStatus.CANCELLED
        task.task_done_cb(task, None)

    def system_panic(self, reason, fl_ctx):
        self.panics.append(reason)

    def start(self, signal=None, sites=SITES):
        place = Place(self.workspace, "server", sites=sites)
        write_json(app_config(place), {"workflows": [{"args": self.settings}]})
        self.control_flow(signal or Signal(), place)
        return self


def run_here(job, workspace, *, sites=SITES, **variables):
    """Run a job folder in this process, without FLARE's network; return the attributes of an ended `Simulator`."""
    messages = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SURGFL_SITE_CONFIG", "SURGFL_STATE", "SURGFL_RESUME"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(LogConsole, "say", lambda self, text: messages.append(text))
        patch.setattr(final_message, "say", lambda text, first: messages.append(text))
        (workflow,) = json.loads((job / SERVER).read_text())["workflows"]
        assert workflow["path"] == f"{FederationController.__module__}.{FederationController.__name__}"
        controller = ByHand(workspace, **workflow["args"]).start(sites=sites)
    run = (workspace.with_name(f"{workspace.name}-state") / job.name / "latest").resolve()
    return SimpleNamespace(panics=controller.panics, output="\n".join(messages), last_line=messages[-1], run=run)


def copied(shareable):
    """Send a message through FLARE's serialiser."""
    return fobs.loads(fobs.dumps(shareable))


@pytest.fixture
def messages(monkeypatch):
    """Return the list of final messages."""
    words: list[str] = []
    monkeypatch.setattr(final_message, "say", lambda text, first: words.append(text))
    return words


@pytest.fixture
def workspace(tmp_path, scenes, monkeypatch):  # noqa: F811
    """Return a simulator's workspace whose sites find three tiny scenes."""
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(scenes[0].parent.parent))
    monkeypatch.delenv("SURGFL_STATE", raising=False)
    monkeypatch.delenv("SURGFL_RESUME", raising=False)
    return tmp_path / "ws"


@pytest.fixture
def by_hand(workspace, messages, job_on_toy):  # noqa: F811
    """Return a function that makes a controller, with the toy's network if the method permits it."""

    def make(method="fedavg", *, answer=None, **changes):
        job = job_on_toy(method, **{"rounds": 1, **changes})
        return ByHand(workspace, answer, **job.to_json())

    return make
