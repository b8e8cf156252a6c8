"""Strangers try to join while a job runs."""

import contextlib
import json
import os
import pickle
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvflare.apis.fl_constant import AdminCommandNames, ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, ReturnCode
from nvflare.private.defs import TrainingTopic
from nvflare.widgets.fed_event import FED_EVENT_TOPIC

from evidence.production import noted
from evidence.production.deployment import MARK, Deployment, Party, until
from evidence.production.prepared import describe, sign_again
from evidence.production.results import LONGER, records, rejected, run_to_end
from evidence.production.trials import Deploy, trial
from shared_components.flare.deployment.federation_file import parse_federation
from shared_components.flare.provision import provision

WATCHED = 20.0  # minimum seconds of each attempt
GARBAGE = 100_000_000  # bytes


@trial("sites with expired, foreign or another site's certificates; a disabled site", quick=True)
def sites_outside(deploy: Deploy) -> str:
    """The server accepts only the true site, also after a restart; the other sites' own kits still work afterwards."""
    deployment = deploy()
    first, disabled, away = deployment.sites.values()
    for party in (deployment.server, first, disabled):
        party.start()
    deployment.wait_for_sites(first.name, disabled.name)
    with deployment.session() as session:
        session.disable_client(disabled.name)
    for party in (deployment.server, disabled):
        party.kill()
        party.start()
    with running(impostors(deployment, first, away)) as others:
        deployment.wait_for_sites(first.name, seconds=120)
        begun, seen = time.monotonic(), set()
        job = deployment.submit(deployment.job("fedavg", rounds=3, min_sites=1, training=LONGER))
        while time.monotonic() < begun + WATCHED:
            seen |= set(deployment.connected())
            time.sleep(1)
        assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
        seen |= set(deployment.connected())
        assert seen == {first.name}, seen
        for other in others:
            assert other.log and "Successfully registered" not in other.log, other.kit
        for words in (
            f"authenticated as '{first.name}' but claimed endpoint '{away.name}'",
            f"Reject disabled client registration: {disabled.name}",
        ):
            assert words in deployment.server.log, words
        seconds = time.monotonic() - begun
    answered = {record["site"] for record in records(deployment, "fedavg") if record["kind"] == "site"}
    assert answered == {first.name}, answered
    with deployment.session() as session:
        session.enable_client(disabled.name)
    for party in (disabled, away):
        if party.pid is None:  # it has given up
            party.start()
    deployment.wait_for_sites(first.name, disabled.name, away.name, seconds=120)
    return f"{len(others) + 1} of {len(others) + 1} kept out for {seconds:.0f} s; the server saw {len(seen)} site"


@trial("plain TCP, TLS without certificate, pickles, 100 MB of garbage", quick=True)
def garbage(deploy: Deploy) -> str:
    """The server process survives, opens no pickle, and the running job succeeds."""
    deployment = deploy("hospital-a", "hospital-b")
    marker = deployment.folder / "marker"
    deployment.start()
    process = deployment.server.pid
    job = deployment.submit(deployment.job("fedavg", rounds=6, training=LONGER))
    until(lambda: deployment.server.job_pids(job), 60, "the job runs")
    payloads = (pickle.dumps(Touch(str(marker))), b"\x80\x05" * (GARBAGE // 2), frame(GARBAGE))
    sent, count = 0, 0
    for port in (deployment.federation.server.port, deployment.federation.server.admin_port):
        for wrap in (plain, without_certificate, with_certificate(deployment.sites["hospital-b"].kit)):
            for payload in payloads:
                sent, count = sent + throw(port, wrap, payload, deployment.server.kit), count + 1
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert rejected(deployment, "fedavg") == [{}] * 6
    assert deployment.server.pid == process and not marker.exists()
    assert deployment.connected() == sorted(deployment.sites)
    return f"{count} attempts, {sent / 1e6:.0f} MB taken; 6 of 6 rounds, 2 of 2 sites, 0 marker files"


COMMANDS = [
    (CellChannel.CLIENT_COMMAND, AdminCommandNames.ABORT, "hospital-a.JOB"),
    (CellChannel.CLIENT_MAIN, TrainingTopic.ABORT, "hospital-a"),
    (CellChannel.SERVER_COMMAND, AdminCommandNames.ABORT, "server.JOB"),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.HANDLE_DEAD_JOB, "server.JOB"),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.APP_COMMAND, "server.JOB"),
    (CellChannel.SERVER_PARENT_LISTENER, ServerCommandNames.UPDATE_RUN_STATUS, "server"),
    (CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC, "server.JOB"),
]


@trial("a site sends FLARE commands and events to another site and the server", quick=True)
def commands(deploy: Deploy) -> str:
    """The server refuses and logs every connection; the job has all sites in all rounds."""
    deployment = deploy()
    hostile = deployment.sites["hospital-b"]
    noted.command(deployment.root, hostile.name, COMMANDS)
    deployment.start()
    run_to_end(deployment, "fedavg", name="fedavg", rounds=4)
    answers = json.loads((hostile.runs("fedavg") / hostile.name / noted.ANSWERS).read_text("utf-8"))
    assert answers == [ReturnCode.TIMEOUT] * len(COMMANDS), f"somebody has answered: {answers}"
    said = deployment.server.log.count(f"a message of {hostile.name} is refused: ")
    assert said == len(COMMANDS), said
    return f"{len(answers)} of {len(COMMANDS)} refused and logged; 4 of 4 rounds with all 3 sites"


def impostors(deployment: Deployment, good: Party, away: Party) -> list[Party]:
    """Return the impostors of an absent site, with kits made from other authorities."""
    now, day = datetime.now(UTC), timedelta(days=1)
    foreign = deployment.folder / "foreign"
    provision(parse_federation(describe({away.name: away.kit})), foreign)
    found = []
    for what, kit in (("expired", away.kit), ("foreign", away.kit), ("another's", good.kit)):
        root = deployment.folder / "impostors" / what.replace("'", "")
        copy = Path(shutil.copytree(kit, root / away.name))
        for console in copy.glob("*.txt"):
            console.unlink()
        if what == "expired":
            sign_again(root, away.name, begins=now - 2 * day, ends=now - day, by=deployment.kits)
        if what == "foreign":
            sign_again(root, away.name, begins=now - day, ends=now + day, by=foreign)
        found.append(Party(copy, "client", away.organisation, {**away.variables, MARK: f"{deployment.mark}/{what}"}))
    return found


@contextlib.contextmanager
def running(parties: list[Party]) -> Iterator[list[Party]]:
    """Start parties outside the deployment, and end them."""
    try:
        for party in parties:
            party.start()
        yield parties
    finally:
        for party in parties:
            party.kill()


class Touch:
    """Write a file when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


Wrap = Callable[[socket.socket, Path], socket.socket]


def plain(sock: socket.socket, kit: Path) -> socket.socket:
    """Connect without TLS."""
    return sock


def without_certificate(sock: socket.socket, kit: Path) -> socket.socket:
    """Connect with TLS, without a client certificate."""
    context = ssl.create_default_context(cafile=str(kit / "startup" / "rootCA.pem"))
    return context.wrap_socket(sock, server_hostname="localhost")


def with_certificate(own: Path) -> Wrap:
    """Connect with a site's certificate and send garbage."""

    def wrap(sock: socket.socket, kit: Path) -> socket.socket:
        context = ssl.create_default_context(cafile=str(kit / "startup" / "rootCA.pem"))
        context.load_cert_chain(own / "startup" / "client.crt", own / "startup" / "client.key")
        return context.wrap_socket(sock, server_hostname="localhost")

    return wrap


def frame(size: int) -> bytes:
    """Return a WebSocket request with a body of this size, which continues with a frame's length."""
    head = f"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nContent-Length: {size}\r\n\r\n".encode()
    return head + json.dumps({"length": 10**12}).encode() + bytes(size)


def throw(port: int, wrap: Wrap, payload: bytes, kit: Path) -> int:
    """Send as many bytes as the server accepts; return their number."""
    taken = 0
    try:
        with socket.create_connection(("localhost", port), timeout=10) as sock, wrap(sock, kit) as channel:
            for begin in range(0, len(payload), 1 << 20):
                channel.sendall(payload[begin : begin + (1 << 20)])
                taken += len(payload[begin : begin + (1 << 20)])
            channel.settimeout(5)
            channel.recv(1 << 16)
    except (OSError, ssl.SSLError):  # the server closed the connection
        pass
    return taken
