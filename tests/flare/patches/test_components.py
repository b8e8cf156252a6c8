"""Components install the replacements that their process needs; simulator workers; an administrator's downloads."""

import ast
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client import file_transfer
from nvflare.fuel.hci.client.api_status import APIStatus
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.proto import MetaKey, ProtoKey
from nvflare.fuel.hci.reg import CommandRegister
from nvflare.fuel.sec import authn
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.server_engine import ServerEngine

from evidence.upstream import reply_ends_job, shared_build_ctx, text_replaced
from evidence.upstream.shared_build_ctx import received_names
from shared_components.flare.controller import FederationController
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.lost_sites import LostSites
from shared_components.flare.patches import connections, worker_names
from shared_components.flare.patches import downloads as patched_downloads
from shared_components.flare.patches.downloads import Downloads, open_session
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.patches.versions import SOURCES
from shared_components.flare.peers import KeepToTheServer
from tests.flare.conftest import put_back
from tests.flare.patches.test_job_configuration import REPLACED

STREAMS, ROUTES = (byte_streamer, "gen_stream_id"), (authn, "add_authentication_headers")
MESSAGES = (CoreCell, "_process_received_msg")
LOSSES = {(FederatedServer, "_resolve_missing_client_outcome"), (ServerEngine, "start_client_job")}
OF_A_CONTROLLER = {(cell, "_is_server_job_cell"), (SimulatorClientRunner, "do_one_task")}
ALL = {MESSAGES, STREAMS, ROUTES, *LOSSES, *OF_A_CONTROLLER, *REPLACED}
CHECKS = {"boundary", "connections", "commands"}


@pytest.fixture(autouse=True)
def flares_own(monkeypatch):
    put_back(monkeypatch, *ALL)
    monkeypatch.setattr(connections, "_CHECKS", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONSAFEPATH", "")


@pytest.mark.parametrize(
    ("component", "replaced", "checks"),
    [
        (KeepToTheServer, {MESSAGES, STREAMS, ROUTES, *REPLACED}, CHECKS), (LostSites, {MESSAGES}, {"boundary"}),
        (FederationController, {MESSAGES, STREAMS, *OF_A_CONTROLLER}, {"connections"}),
        (SiteExecutor, {MESSAGES, STREAMS}, {"connections"}),
    ],
)  # fmt: skip
def test_a_component_replaces_what_its_process_needs(component, replaced, checks):
    component()
    assert {(owner, name) for owner, name in ALL if hasattr(getattr(owner, name), REPLACES)} == replaced
    assert set(connections._CHECKS) == checks


def test_the_table_contains_the_ten_replaced_functions_and_those_that_a_protection_relies_on():
    replaced = {".".join(filter(None, (getattr(owner, "__module__", ""), owner.__name__, name))) for owner, name in ALL}
    relied_on = {path.rpartition("nvflare.")[2] for path in SOURCES.keys() - replaced}
    assert len(replaced) == 10 and replaced <= SOURCES.keys()
    assert relied_on == {
        "app_opt.job_launcher.docker_launcher.DockerJobLauncher._resolve_study_runtime",
        "app_opt.job_launcher.k8s_launcher.K8sJobLauncher._resolve_study_runtime",
        "app_opt.job_launcher.slurm.launcher.SlurmJobLauncher._load_study_runtime",
        "fuel.f3.cellnet.core_cell.CoreCell._process_request",
        "fuel.f3.streaming.byte_streamer.ByteStreamer._ack_handler",
        "fuel.hci.client.file_transfer.FileTransferModule._tx_path", "lighter.impl.cert.CertBuilder._generate_cert",
        "fuel.hci.client.file_transfer.FileTransferModule.pull_binary_file",
        "fuel.hci.client.file_transfer.FileTransferModule.pull_folder",
        "fuel.sec.authn.add_server_path_reply_authentication_headers",
        "private.fed.app.default_app_validator._config_exists",
        "private.fed.server.server_command_agent.ServerCommandAgent.start",
    }  # fmt: skip


def test_only_known_functions_are_replaced_or_relied_on():
    calls = [
        ast.unparse(node.func) for path in Path(connections.__file__).parent.parent.rglob("*.py")
        if "patches.replace import" in path.read_text("utf-8")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)
    ]  # fmt: skip
    assert calls.count("replace") == len(ALL) and calls.count("expect") == len(SOURCES) - len(ALL) - 2  # one for three


def test_flare_itself_gives_both_workers_the_same_name():
    """When this fails, FLARE has fixed it, and `worker_names` can go."""
    names = received_names()
    assert len(names) == 2 and len(set(names)) == 1


def test_each_worker_receives_its_own_name():
    worker_names.separate_worker_names()
    worker_names.separate_worker_names()  # a second controller in the process changes nothing
    assert received_names() == ["site-1", "site-2"]
    own = getattr(SimulatorClientRunner.do_one_task, REPLACES)
    assert own.__qualname__ == "SimulatorClientRunner.do_one_task" and not hasattr(own, REPLACES)


@pytest.mark.parametrize("report", [reply_ends_job, shared_build_ctx, text_replaced])
def test_each_report_for_flare_reproduces_with_the_installed_version(report, capsys):
    """When this fails, FLARE has fixed it: remove the report, and the replacement that it is about."""
    assert report.main() == 0, capsys.readouterr().out


# ---- an administrator's downloads


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """Return FLARE's module and ours that download into a folder, and the paths that they would write."""
    written: list[str] = []
    (tmp_path / "transfer").mkdir()
    monkeypatch.setattr(file_transfer, "_FileReceiver", lambda source, ref, path: written.append(path) or Mock())
    flares, ours = (kind(str(tmp_path), str(tmp_path / "transfer")) for kind in (FileTransferModule, Downloads))
    return flares, ours, written


def pull(module, tx, file):
    api = Mock()
    api.server_execute.return_value = {ProtoKey.STATUS: APIStatus.SUCCESS}
    context = Mock(get_api=lambda: api)
    return module.pull_binary_file(["pull", "server", tx, "ref", "job", file], context)


@pytest.mark.parametrize(
    ("tx", "file"), [("t", "../../.ssh/keys"), ("t", "/etc/keys"), ("t/../../../papers", "x"), ("t", "..")]
)
def test_a_download_stays_in_its_folder_with_any_names_from_the_server(tx, file, downloads, tmp_path):
    flares, module, written = downloads
    pull(flares, tx, file)
    place = Path(written.pop()).resolve()
    assert file == ".." or not place.is_relative_to(tmp_path / "transfer" / "job__t")
    with pytest.raises(ValueError, match="ask who runs it"):
        pull(module, tx, file)
    assert written == []
    pull(module, "t-1", "models/site-1.zip")
    assert written == [str(tmp_path / "transfer" / "job__t-1" / "models/site-1.zip")]


@pytest.mark.parametrize("there", [True, False])
def test_a_server_without_files_cannot_choose_the_downloads_folder(there, downloads, tmp_path):
    _, module, _ = downloads
    place = tmp_path / ("transfer/job" if there else "papers")
    meta = {ProtoKey.STATUS: APIStatus.SUCCESS, ProtoKey.META: {MetaKey.LOCATION: str(place)}}
    context = Mock(get_api=lambda: Mock(server_execute=lambda command: meta), get_command_entry=Mock())
    context.get_command_entry().full_command_name.return_value = "download_job"
    with nullcontext() if there else pytest.raises(ValueError, match="the server puts the download at "):
        assert module.pull_folder(["download_job", "job"], context) == meta


class Api:
    """The parts of FLARE's API of administrators that load command modules."""

    def __init__(self, module, *, ignores):
        self.cmd_modules, self.client_cmd_reg, self.closed = [module], CommandRegister(self), False
        self.loaded = [module] if ignores else self.cmd_modules

    def connect(self, timeout):
        for module in self.loaded:
            self.client_cmd_reg.register_module(module)
        self.client_cmd_reg.finalize()

    def login(self):
        return {"status": APIStatus.SUCCESS}


@pytest.mark.parametrize("ignores", [False, True])
def test_a_session_downloads_by_our_module_or_is_closed(ignores, downloads, monkeypatch, tmp_path):
    closed = []

    class Opened(Session):
        def __init__(self, username, startup_path):
            self.api = Api(downloads[0], ignores=ignores)

        def close(self):
            closed.append(self)

    monkeypatch.setattr(patched_downloads, "Session", Opened)
    with pytest.raises(RuntimeError, match="unrestricted module") if ignores else nullcontext():
        session = open_session("anna", tmp_path, timeout=1.0)
        (entry,) = session.api.client_cmd_reg.get_command_entries("pull_binary_file")
        assert isinstance(entry.handler.__self__, Downloads) and session.api.auto_login_max_tries == 1
    assert len(closed) == ignores
