"""FLARE's own code hands two workers their names in the same instant."""

import threading
from types import SimpleNamespace

import pytest
from nvflare.private.fed.app.simulator import simulator_runner
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from shared_components.flare.patches import worker_names

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


@pytest.fixture
def flares_own(monkeypatch):
    """The runner class as FLARE ships it, restored afterwards."""
    kind = simulator_runner.SimulatorClientRunner
    monkeypatch.setattr(kind, "do_one_task", getattr(kind.do_one_task, "__wrapped__", kind.do_one_task))
    return kind


def names_told(kind, monkeypatch, tmp_path):
    """Let two threads start the workers of two sites; return what each worker was told."""
    workers = {"hospital-a": Worker(), "hospital-b": Worker()}
    runner = kind.__new__(kind)
    cell = SimpleNamespace(get_root_url_for_child=lambda: "root", get_internal_listener_url=lambda: "parent")
    clients = [SimpleNamespace(client_name=name, token="token", cell=cell) for name in workers]
    runner.__dict__.update(
        args=SimpleNamespace(workspace=str(tmp_path), log_config=None),
        build_ctx={"client_name": None},
        deploy_args=Pause(threading.Barrier(2)),
        client_config=None,
        federated_clients=clients,
        server_custom_folder=str(tmp_path / "no such folder"),
        simulator_root=str(tmp_path),
        logging_config="",
        run_client_index=-1,
    )
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


def test_flare_itself_tells_both_workers_the_same_name(flares_own, monkeypatch, tmp_path):
    """Where this fails, FLARE has mended it, and `worker_names` can go."""
    told, _ = names_told(flares_own, monkeypatch, tmp_path)
    assert len(told) == 2 and len(set(told)) == 1


def test_each_worker_is_told_its_own_name(flares_own, monkeypatch, tmp_path):
    worker_names.keep_apart()
    worker_names.keep_apart()  # a second controller in the process changes nothing
    told, runner = names_told(flares_own, monkeypatch, tmp_path)
    assert told == ["hospital-a", "hospital-b"]
    assert flares_own.do_one_task.__wrapped__.__qualname__ == "SimulatorClientRunner.do_one_task"
    assert not hasattr(flares_own.do_one_task.__wrapped__, "__wrapped__")
    assert runner.build_ctx == {"client_name": None} and "get_next_run_client" not in vars(runner)
