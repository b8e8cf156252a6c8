"""What FLARE does by itself, and what the short patches make of it; `test_replace` has what all patches share."""

import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode
from nvflare.fuel.f3.streaming import byte_streamer, stream_utils
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.hci.client import file_transfer
from nvflare.fuel.hci.client.api_status import APIStatus
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.proto import MetaKey, ProtoKey
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_config_loader import JsonConfigLoader
from nvflare.private import json_configer
from nvflare.private.fed.app import default_app_validator
from nvflare.private.fed.app.simulator import simulator_runner
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.server.server_commands import SubmitUpdateCommand
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer

from shared_components.flare.controller import FederationController
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.lost_sites import LostSites
from shared_components.flare.patches import worker_names
from shared_components.flare.patches.downloads import keep_in_place
from shared_components.flare.patches.late_connections import close_late_connections
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.patches.stream_ids import count_streams
from shared_components.flare.patches.survive_bad_messages import stay_alive
from shared_components.flare.peers import KeepToTheServer

MESSAGES = (CoreCell, "_process_received_msg")
EVERYWHERE = {(CoreCell, "_add_adhoc_connector"), (TxTask, "handle_ack"), (byte_streamer, "gen_stream_id")}
JOBS = {
    (ConfigFormat, "config_ext_formats"), (ConfigFactory, "get_config_loader"), (JsonConfigLoader, "_from_file"),
    (JsonConfigLoader, "load_config_from_str"), (default_app_validator, "_config_exists"), (AppDeployer, "deploy"),
    (JobMetaValidator, "_validate_zf"), (json_configer, "resolve_var_refs"),
}  # fmt: skip
COMMANDS = {(FedAdminAgent, "_dispatch_request"), (AppAuthzService, "authorize_app_info")}
OF_A_CONTROLLER = {
    (cell, "_is_server_job_cell"), (SubmitUpdateCommand, "process"), (SimulatorClientRunner, "do_one_task")
}  # fmt: skip
ALL = {MESSAGES} | COMMANDS | EVERYWHERE | OF_A_CONTROLLER | JOBS


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    """Let each test begin with FLARE's own functions, whoever has replaced them in this process."""
    for owner, name in {*ALL, (BaseDriver, "add_connection")}:
        present = getattr(owner, name)
        own = getattr(present, REPLACES, present)
        static = owner in (AppAuthzService, ConfigFormat, ConfigFactory)
        monkeypatch.setattr(owner, name, staticmethod(own) if static else own)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONSAFEPATH", "")


@pytest.mark.parametrize(
    ("component", "replaced"),
    [
        (KeepToTheServer, EVERYWHERE | COMMANDS | JOBS | {MESSAGES}),
        (LostSites, {MESSAGES}),
        (FederationController, EVERYWHERE | OF_A_CONTROLLER),
        (SiteExecutor, EVERYWHERE),
    ],
)
def test_a_component_replaces_what_its_process_needs(component, replaced):
    component()
    assert {(owner, name) for owner, name in ALL if hasattr(getattr(owner, name), REPLACES)} == replaced


class Turn:
    """A lock that lets the other thread have its turn as soon as it is given back."""

    def __init__(self, other):
        self.other = other

    def __enter__(self):
        return self

    def __exit__(self, *error):
        other, self.other = self.other, None
        if other is not None:
            other()


def test_flare_gives_two_streams_one_number(monkeypatch):
    found = []
    monkeypatch.setattr(stream_utils, "lock", Turn(lambda: found.append(stream_utils.gen_stream_id())))
    found.append(stream_utils.gen_stream_id())
    assert len(found) == 2 and len(set(found)) == 1


def test_every_stream_has_a_number_of_its_own():
    given = byte_streamer.gen_stream_id()
    count_streams()
    numbers = byte_streamer.gen_stream_id
    count_streams()  # a second time changes nothing
    assert byte_streamer.gen_stream_id is numbers
    found: list[int] = []

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(lambda: found.extend([byte_streamer.gen_stream_id() for _ in range(2000)]))
    assert len(set(found)) == len(found) == 8000 and min(found) > given


PARAMS = [part.value for part in (DriverParams.SCHEME, DriverParams.HOST, DriverParams.PORT, DriverParams.PATH)]


class Late(TcpDriver):
    """Its connection is made, and known to nobody before its connector has ended."""

    def __init__(self):
        super().__init__()
        self.connecting, self.closed = threading.Event(), threading.Event()

    def add_connection(self, conn):
        self.connecting.set()
        assert self.closed.wait(30)
        super().add_connection(conn)

    def shutdown(self):
        super().shutdown()
        self.closed.set()


@pytest.fixture
def stopping():
    """Return a function that ends a manager whose connection is late; it returns the thread that waits for the end."""
    listening, driver, manager = socket.create_server(("127.0.0.1", 0)), Late(), ConnManager(Endpoint("here"))
    thread = threading.Thread(target=manager.stop, daemon=True)

    def stop():
        params = dict(zip(PARAMS, ("tcp", *listening.getsockname(), ""), strict=True))
        manager.add_connector(driver, params, Mode.ACTIVE)
        manager.start()
        assert driver.connecting.wait(30)
        thread.start()
        return thread

    yield stop
    listening.close()
    driver.close_all()
    thread.join(30)


def test_it_is_closed_and_the_end_comes(stopping):
    close_late_connections()
    thread = stopping()
    thread.join(30)
    assert not thread.is_alive()


def test_flare_alone_would_wait_for_ever(stopping):
    """When this fails, FLARE closes such connections itself, and the replacement can go."""
    thread = stopping()
    thread.join(3)
    assert thread.is_alive()


def receive_garbage():
    """Let FLARE's own code read an update of a site, in the server's process of a job."""
    headers = {
        StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
        StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE,
        StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
    }
    passed = {"decode_pass_through_channels": set(), "decode_pass_through_topics": set()}
    no_cell = SimpleNamespace(**passed, get_fobs_context=lambda props: {})
    adapter = cell.Adapter(lambda request: None, SimpleNamespace(fqcn="server.0f1e"), no_cell)
    adapter.call(SimpleNamespace(headers=headers, result=lambda: b"garbage"))


@pytest.fixture
def server_of_a_job(monkeypatch):
    def ended(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ended)


def test_flare_by_itself_ends_the_process(server_of_a_job):
    with pytest.raises(SystemExit):
        receive_garbage()


def test_what_cannot_be_read_raises_and_the_process_lives(server_of_a_job):
    stay_alive()
    with pytest.raises(RuntimeError, match="header"):
        receive_garbage()


TOGETHER = 5  # seconds, at most, that one thread waits for the other


class Pause:
    """What FLARE copies between writing a name and sending it: wait there until both threads have written."""

    def __init__(self, barrier):
        self.barrier, self.workspace = barrier, "ws"

    def __deepcopy__(self, memo):
        self.barrier.wait(TOGETHER)
        return SimpleNamespace(workspace=self.workspace)


class Worker:
    """The connection to a process that keeps the name that it is told, and wants to stop."""

    def __init__(self):
        self.told, self.answers = [], [True, "done"]

    def send(self, data):
        if isinstance(data, dict):
            self.told.append(data[SimulatorConstants.BUILD_CTX]["client_name"])

    def recv(self):
        return self.answers.pop(0)


def names_told(monkeypatch, tmp_path):
    """Let two threads start the workers of two sites; return what each worker was told."""
    kind, workers = SimulatorClientRunner, {"hospital-a": Worker(), "hospital-b": Worker()}
    runner = kind.__new__(kind)
    cell = SimpleNamespace(get_root_url_for_child=lambda: "root", get_internal_listener_url=lambda: "parent")
    clients = [SimpleNamespace(client_name=name, token="token", cell=cell) for name in workers]
    runner.__dict__.update(
        args=SimpleNamespace(workspace=str(tmp_path), log_config=None), build_ctx={"client_name": None},
        deploy_args=Pause(threading.Barrier(2)), client_config=None, federated_clients=clients,
        server_custom_folder=str(tmp_path / "no such folder"), simulator_root=str(tmp_path), logging_config="",
        run_client_index=-1,
    )  # fmt: skip
    ports = iter(workers.values())
    lock = threading.Lock()
    process = SimpleNamespace(poll=lambda: None, terminate=lambda: None, wait=lambda timeout: None)
    monkeypatch.setattr(simulator_runner, "get_open_ports", lambda number: [next(ports)])
    monkeypatch.setattr(simulator_runner.subprocess, "Popen", lambda command, **_: process)
    monkeypatch.setattr(kind, "_create_connection", lambda runner, port, timeout: port)
    for name in workers:
        for folder in ("startup", "local"):
            (tmp_path / name / folder).mkdir(parents=True, exist_ok=True)
    threads = [threading.Thread(target=kind.do_one_task, args=(runner, client, 2, None, lock)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TOGETHER)
    return sorted(name for worker in workers.values() for name in worker.told), runner


def test_flare_itself_tells_both_workers_the_same_name(monkeypatch, tmp_path):
    """Where this fails, FLARE has mended it, and `worker_names` can go."""
    told, _ = names_told(monkeypatch, tmp_path)
    assert len(told) == 2 and len(set(told)) == 1


def test_each_worker_is_told_its_own_name(monkeypatch, tmp_path):
    worker_names.keep_apart()
    worker_names.keep_apart()  # a second controller in the process changes nothing
    told, runner = names_told(monkeypatch, tmp_path)
    assert told == ["hospital-a", "hospital-b"]
    own = getattr(SimulatorClientRunner.do_one_task, REPLACES)
    assert own.__qualname__ == "SimulatorClientRunner.do_one_task" and not hasattr(own, REPLACES)
    assert runner.build_ctx == {"client_name": None} and "get_next_run_client" not in vars(runner)


# ---- an administrator's downloads


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """Return FLARE's module that downloads into a folder, and what it would write."""
    for name in ("_tx_path", "pull_binary_file", "pull_folder"):
        own = getattr(FileTransferModule, name)
        monkeypatch.setattr(FileTransferModule, name, getattr(own, REPLACES, own))
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
def test_a_download_stays_in_its_folder_whatever_the_server_calls_it(tx, file, downloads, tmp_path):
    module, written = downloads
    pull(module, tx, file)  # FLARE's own
    place = Path(written.pop()).resolve()
    assert file == ".." or not place.is_relative_to(tmp_path / "transfer" / "job__t")
    keep_in_place()
    with pytest.raises(ValueError, match="ask who runs it"):
        pull(module, tx, file)
    assert written == []
    pull(module, "t-1", "models/site-1.zip")
    assert written == [str(tmp_path / "transfer" / "job__t-1" / "models/site-1.zip")]


@pytest.mark.parametrize("there", [True, False])
def test_a_server_without_files_cannot_say_where_the_download_lies(there, downloads, tmp_path):
    module, _ = downloads
    place = tmp_path / ("transfer/job" if there else "papers")
    meta = {ProtoKey.STATUS: APIStatus.SUCCESS, ProtoKey.META: {MetaKey.LOCATION: str(place)}}
    context = Mock(get_api=lambda: Mock(server_execute=lambda command: meta), get_command_entry=Mock())
    context.get_command_entry().full_command_name.return_value = "download_job"
    keep_in_place()
    with nullcontext() if there else pytest.raises(ValueError, match="the server has the download at "):
        assert module.pull_folder(["download_job", "job"], context) == meta
