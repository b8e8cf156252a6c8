"""Two threads of FLARE's simulator send two workers the same site's name.

`SimulatorClientRunner.do_one_task` writes the name into a dictionary that all threads share, and sends it later. Here a
barrier stands at the copy between the two, so that the order of the threads does not depend on luck.
"""

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from nvflare.private.fed.app.simulator import simulator_runner
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner

SITES = ("site-1", "site-2")


class Barrier:
    """Deployment arguments, whose copy waits until both threads have written their name."""

    workspace, barrier = "ws", threading.Barrier(len(SITES))

    def __deepcopy__(self, memo: object) -> SimpleNamespace:
        self.barrier.wait(10)
        return SimpleNamespace(workspace=self.workspace)


class Worker:
    """The connection to a worker: keeps the name that it receives, and ends the run."""

    def __init__(self) -> None:
        self.name, self.answers = "", [True, "done"]

    def send(self, data: object) -> None:
        """Keep the site's name."""
        if isinstance(data, dict):
            self.name = data["build_ctx"]["client_name"]

    def recv(self) -> object:
        """Return the worker's next answer."""
        return self.answers.pop(0)


def received_names() -> list[str]:
    """Let two threads start the workers of two sites; return the names that the workers receive."""
    workers = [Worker() for _ in SITES]
    cell = SimpleNamespace(get_root_url_for_child=lambda: "root", get_internal_listener_url=lambda: "parent")
    clients = [SimpleNamespace(client_name=site, token="token", cell=cell) for site in SITES]
    process = SimpleNamespace(poll=lambda: None, terminate=lambda: None, wait=lambda timeout: None)
    ports = iter(workers)
    runner = SimulatorClientRunner.__new__(SimulatorClientRunner)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(simulator_runner, "get_open_ports", lambda number: [next(ports)]),
        patch.object(subprocess, "Popen", lambda *_, **__: process),
        patch.object(SimulatorClientRunner, "_create_connection", lambda runner, port, timeout: port),
    ):
        for site in SITES:
            for part in ("startup", "local"):
                (Path(folder) / site / part).mkdir(parents=True)
        runner.__dict__.update(
            args=SimpleNamespace(workspace=folder, log_config=None), build_ctx={}, deploy_args=Barrier(),
            client_config=None, federated_clients=clients, server_custom_folder=f"{folder}/none", simulator_root=folder,
        )  # fmt: skip
        lock = threading.Lock()
        threads = [threading.Thread(target=runner.do_one_task, args=(one, len(SITES), None, lock)) for one in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    return sorted(worker.name for worker in workers)


def main() -> int:
    """Print the names that the workers receive; return 0 if they are equal."""
    names = received_names()
    print(f"workers of {' and '.join(SITES)} receive the names {' and '.join(names)}")
    return 0 if len(set(names)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
