"""Components install the replacements that their process needs; simulator workers; an administrator's downloads."""

import sys
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.hci.client import file_transfer
from nvflare.fuel.hci.client.api_status import APIStatus
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.proto import MetaKey, ProtoKey
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.server.server_commands import SubmitUpdateCommand

from shared_components.flare.controller import FederationController
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.lost_sites import LostSites
from shared_components.flare.patches import worker_names
from shared_components.flare.patches.downloads import restrict_downloads
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.peers import KeepToTheServer
from tests.flare.conftest import put_back
from tests.flare.patches.test_job_configuration import REPLACED

MESSAGES = (CoreCell, "_process_received_msg")
EVERYWHERE = {(CoreCell, "_add_adhoc_connector"), (TxTask, "handle_ack"), (byte_streamer, "gen_stream_id")}
OF_A_CONTROLLER = {
    (cell, "_is_server_job_cell"), (SubmitUpdateCommand, "process"), (SimulatorClientRunner, "do_one_task")
}  # fmt: skip
JOBS = {*REPLACED, (FedAdminAgent, "_dispatch_request")}
ALL = {MESSAGES} | EVERYWHERE | OF_A_CONTROLLER | JOBS


@pytest.fixture(autouse=True)
def flares_own(monkeypatch):
    put_back(monkeypatch, *ALL)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONSAFEPATH", "")


@pytest.mark.parametrize(
    ("component", "replaced"),
    [
        (KeepToTheServer, EVERYWHERE | JOBS | {MESSAGES}), (LostSites, {MESSAGES}),
        (FederationController, EVERYWHERE | OF_A_CONTROLLER), (SiteExecutor, EVERYWHERE),
    ],
)  # fmt: skip
def test_a_component_replaces_what_its_process_needs(component, replaced):
    component()
    assert {(owner, name) for owner, name in ALL if hasattr(getattr(owner, name), REPLACES)} == replaced


class Runner:
    """The parts of FLARE's runner of a simulator that its threads share."""

    def get_next_run_client(self): ...


def test_each_worker_receives_its_own_name_and_all_threads_share_one_queue_of_sites():
    runner, seen = Runner(), []
    runner.build_ctx = {"client_name": None}

    def do_one_task(own, client):
        own.build_ctx["client_name"] = client
        seen.append(own)

    for client in ("hospital-a", "hospital-b"):
        worker_names._with_own_dictionary(do_one_task, runner, client)

    assert [own.build_ctx["client_name"] for own in seen] == ["hospital-a", "hospital-b"]
    assert runner.build_ctx == {"client_name": None}
    assert all(own.get_next_run_client.__self__ is runner for own in seen)


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """Return FLARE's module that downloads into a folder, and the paths that it would write."""
    put_back(monkeypatch, *((FileTransferModule, name) for name in ("_tx_path", "pull_binary_file", "pull_folder")))
    written: list[str] = []
    (tmp_path / "transfer").mkdir()
    monkeypatch.setattr(file_transfer, "_FileReceiver", lambda source, ref, path: written.append(path) or Mock())
    return FileTransferModule(str(tmp_path), str(tmp_path / "transfer")), written


def pull(module, tx, file):
    api = Mock()
    api.server_execute.return_value = {ProtoKey.STATUS: APIStatus.SUCCESS}
    context = Mock(get_api=lambda: api)
    return module.pull_binary_file(["pull", "server", tx, "ref", "job", file], context)


@pytest.mark.parametrize(
    ("tx", "file"), [("t", "../../.ssh/keys"), ("t", "/etc/keys"), ("t/../../../papers", "x"), ("t", "..")]
)
def test_a_download_stays_in_its_folder_with_any_names_from_the_server(tx, file, downloads, tmp_path):
    module, written = downloads
    restrict_downloads()
    with pytest.raises(ValueError, match="ask who runs it"):
        pull(module, tx, file)
    assert written == []
    pull(module, "t-1", "models/site-1.zip")
    assert written == [str(tmp_path / "transfer" / "job__t-1" / "models/site-1.zip")]


@pytest.mark.parametrize("there", [True, False])
def test_a_server_without_files_cannot_choose_the_downloads_folder(there, downloads, tmp_path):
    module, _ = downloads
    place = tmp_path / ("transfer/job" if there else "papers")
    meta = {ProtoKey.STATUS: APIStatus.SUCCESS, ProtoKey.META: {MetaKey.LOCATION: str(place)}}
    context = Mock(get_api=lambda: Mock(server_execute=lambda command: meta), get_command_entry=Mock())
    context.get_command_entry().full_command_name.return_value = "download_job"
    restrict_downloads()
    with nullcontext() if there else pytest.raises(ValueError, match="the server puts the download at "):
        assert module.pull_folder(["download_job", "job"], context) == meta
