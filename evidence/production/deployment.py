"""A federation of real processes on this machine: a server, sites and an administrator, over mutual TLS.

    with Deployment(folder, {"hospital-a": site_yaml, "hospital-b": other}) as deployment:
        deployment.start()
        job = deployment.submit(deployment.job("pfedsis", rounds=2))
        deployment.sites["hospital-a"].kill()              # -9: its parent process and its job's
        deployment.sites["hospital-a"].start()
        assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log

Whatever happens, leaving the context ends every process that it has started, and no other.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from evidence.production.at_start import HELD
from evidence.production.at_start import VARIABLE as HOLD
from evidence.production.prepared import CHIEF, describe, give_data, install
from shared_components.flare.deployment.federation_file import parse_federation
from shared_components.flare.deployment.submission import production_copy
from shared_components.flare.patches.connections import close_late_connections
from shared_components.flare.provision import provision
from shared_components.networks.bundle_config import bundle_for
from tests.federation.conftest import SMALL, TINY
from tests.flare.simulator import JOBS, SERVER, edit

MARK = "SURGFL_TEST_DEPLOYMENT"  # environment variables that mark the processes of a deployment
OF_START = {"MALLOC_ARENA_MAX": "4", "PYTHONSAFEPATH": "1"}  # set by a kit's start.sh
ASKING = 0.5  # seconds between requests to the server, each of which costs milliseconds
MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "nvflare.private.fed.app.client.client_train",
    "relay": "shared_components.flare.relay",
}


def until(true: Callable[[], Any], seconds: float, what: str, *, every: float = 0.1) -> Any:
    """Wait for a condition and return its value; an AssertionError names the missing event."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(every)
    raise AssertionError(f"{what} within {seconds:g} s")


class Party:
    """A server or a site: its startup kit and its running processes.

    Args:
        kit: The startup kit, which is FLARE's workspace.
        side: ``server``, ``client`` or ``relay``.
        organisation: Organisation in the certificate.
        variables: Environment variables.
        prefix: Prefix of the command, such as ``ip netns exec NAME``.
    """

    def __init__(
        self, kit: Path, side: str, organisation: str, variables: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> None:
        self.kit, self.side, self.organisation = kit, side, organisation
        self.variables, self.prefix = dict(variables), tuple(prefix)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.kit.name

    @property
    def pid(self) -> int | None:
        """The parent process; None if it is not running."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def job_pids(self, job: str = "") -> list[int]:
        """The job processes, of all jobs or of one job."""
        return [
            process.pid
            for process in marked(self.variables[MARK])
            if process.pid != self.pid
            and any("runner_process" in word or "worker_process" in word for word in _line(process))
            and (not job or job in _line(process))
        ]

    def start(self) -> None:
        """Start the parent process like the kit's start.sh."""
        assert self.pid is None, f"{self.name} is running"
        named = [f"uid={self.name}"] if self.side != "server" else []
        options = ["secure_train=true", *named, f"org={self.organisation}", "config_folder=config"]
        command = [*self.prefix, sys.executable, "-u", "-m", MODULES[self.side], "-m", str(self.kit)]
        with self.console.open("ab") as console:
            self.process = subprocess.Popen(
                [*command, "-s", f"fed_{self.side}.json", "--set", *options],
                cwd=self.kit, env=self.variables, stdout=console, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, by default SIGKILL, to all its processes at once, like a power failure."""
        processes = marked(self.variables[MARK])
        for process in processes:
            _signal(process, number)
        if number == signal.SIGKILL:
            psutil.wait_procs(processes, timeout=20)
            if self.process is not None:
                self.process.wait(20)

    def kill_parent(self) -> None:
        """Kill only the parent process; a job's process lives for at least two more minutes."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def kill_job(self) -> None:
        """Kill only its job processes."""
        killed = [psutil.Process(pid) for pid in self.job_pids()]
        assert killed, f"{self.name} runs no job"
        for process in killed:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(killed, timeout=20)

    @property
    def console(self) -> Path:
        """File with the output of the parent process, over all starts."""
        return self.kit / "console.txt"

    @property
    def log(self) -> str:
        """Output of the parent process."""
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def job_log(self, job: str) -> str:
        """FLARE's log of a job at this party, as long as the job's folder exists."""
        files = [self.kit / job / name for name in ("log.txt", "error_log.txt")]
        return "\n".join(path.read_text(errors="replace") for path in files if path.exists())

    def runs(self, name: str) -> Path:
        """The newest run of a job with this name."""
        return (self.kit / "surgfl" / name / "latest").resolve()


class Deployment:
    """A provisioned federation.

    Args:
        folder: Folder of the kits and of all other files.
        sites: site.yaml of each site, by name.
        change: Further keys of the federation's description.
        variables: Further environment variables of every party.
        prefixes: Prefixes of the parties' commands, by name.

    Attributes:
        server, relays, nodes, sites: The parties; relays and nodes by region.
        kits: Folder of the kits, with administrators' kits (``kits/chief@example.org``) and ``kits/ca``.
        phases: Seconds of each step, by name.
    """

    def __init__(
        self,
        folder: Path,
        sites: Mapping[str, Path],
        *,
        change: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        prefixes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        close_late_connections()  # FLARE sessions of this process
        self.folder, self.kits = folder, folder / "kits"
        self.phases: dict[str, float] = {}
        self.mark = uuid.uuid4().hex
        self.root = install(folder / "installed")
        self.federation = parse_federation({**describe(sites), **(change or {})})
        with self.phase("provision"):
            provision(self.federation, self.kits)
        for name, path in sites.items():
            give_data(self.kits / name, path)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SURGFL_")}
        self.variables = {
            **kept, **OF_START, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", **(variables or {}),
        }  # fmt: skip
        self.prefixes = dict(prefixes or {})
        host = self.federation.server
        self.server = self._party(host.host, "server", host.organisation)
        self.sites = {site.name: self._party(site.name, "client", site.organisation) for site in self.federation.sites}
        regions = self.federation.regions
        self.relays = {region.name: self._party(region.relay, "relay", region.organisation) for region in regions}
        self.nodes = {region.name: self._party(region.name, "client", region.organisation) for region in regions}

    def _party(self, name: str, side: str, organisation: str) -> Party:
        kit = self.kits / name
        files = {HOLD: str(kit / "hold.json"), HELD: str(kit / "held.txt")}
        own = {**self.variables, MARK: f"{self.mark}/{name}", **files}
        return Party(kit, side, organisation, own, self.prefixes.get(name, ()))

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def parties(self) -> list[Party]:
        """The server, the regions' relays and nodes, and the sites."""
        return [self.server, *self.relays.values(), *self.nodes.values(), *self.sites.values()]

    def kill(self) -> None:
        """Kill every process of this deployment."""
        for party in self.parties:
            party.kill()

    def start(self, *, seconds: float = 90) -> None:
        """Start all parties and wait until the server has registered every site."""
        with self.phase("start"):
            for party in self.parties:
                party.start()
            self.wait_for_sites(*self.nodes, *self.sites, seconds=seconds)

    def wait_for_sites(self, *names: str, seconds: float = 90) -> None:
        """Wait until the server has registered exactly these sites."""
        until(lambda: set(names) <= set(self.connected()), seconds, f"{names} did not all connect", every=ASKING)

    def connected(self) -> list[str]:
        """The registered sites; empty if the server does not answer."""
        host = self.federation.server
        try:
            socket.create_connection((host.host, host.admin_port), 1).close()  # FLARE itself tries longer
            with self.session() as session:
                return sorted(client.name for client in session.get_connected_client_list())
        except Exception:  # the server is starting
            return []

    @contextmanager
    def session(self, administrator: str = CHIEF) -> Iterator[Session]:
        """Log in; FLARE's threads run until the session is closed."""
        with closing(new_secure_session(administrator, str(self.kits / administrator), timeout=60.0)) as session:
            yield session

    def job(self, method: str, *, rounds: int = 2, name: str = "", **changes: Any) -> Path:
        """Write a small job for strict sites, replacing an earlier job of the same name; return its folder.

        The network is the tiny network, unless the method has its own bundle.

        Args:
            method: Job folder of `nvflare_jobs`.
            rounds: Rounds of the federation.
            name: Name of the job; default: the method's name.
            changes: Changes of the job's settings.
        """
        name = name or method
        bundle = method if bundle_for(method) == method else "toy"
        strict = self.folder / "production-jobs"
        for before in (self.folder / "jobs" / name, strict / name):
            shutil.rmtree(before, ignore_errors=True)
        job = Path(shutil.copytree(JOBS / method, self.folder / "jobs" / name))
        settings = {"name": name, "bundle": bundle, "rounds": rounds, "training": TINY, "grace_seconds": 5}

        def shrink(config: dict) -> None:
            own = config["workflows"][0]["args"]
            config["workflows"][0]["args"] = {**own, **settings, **SMALL.get(method, {}), **changes}

        edit(job / SERVER, shrink)
        return production_copy(job, strict)

    def submit(self, job: Path, administrator: str = CHIEF) -> str:
        """Submit a job folder; return the job's id."""
        with self.session(administrator) as session:
            return session.submit_job(str(job))

    def wait(self, job: str, *, seconds: float = 240) -> str:
        """Wait for a job's end; return FLARE's status, such as FINISHED:COMPLETED."""
        with self.phase("job"), self.session() as session:
            return until(lambda: _ended(session.get_job_status(job)), seconds, f"job {job} did not end", every=ASKING)

    def fetch(self, job: str, administrator: str = CHIEF) -> Path:
        """Download a job's result; return its folder."""
        with self.phase("fetch"), self.session(administrator) as session:
            return Path(session.download_job_result(job))

    def shutdown(self, *, seconds: float = 60) -> None:
        """Shut down all parties with FLARE's command, and wait until they have ended."""
        with self.phase("shutdown"):
            with self.session() as session:
                session.shutdown("all", wait=False)
            until(lambda: not any(party.pid for party in self.parties), seconds, "the parties did not end")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the seconds of a step."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = round(time.monotonic() - begun, 1)


def _ended(status: str | None) -> str | None:
    return status if status and status.startswith(("FINISHED", "ABORTED", "FAILED")) else None


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes whose environment contains a mark of a deployment, or of a deployment and a party."""
    found = []
    for process in psutil.process_iter():
        try:
            own = process.environ().get(MARK, "")
            if (own == mark or own.startswith(f"{mark}/")) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass
