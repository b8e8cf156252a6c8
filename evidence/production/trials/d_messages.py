"""A modified site, or somebody with a stolen key, sends FLARE messages against the other parties."""

import asyncio
import contextlib
import math
import random
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgpack
from nvflare.apis.fl_constant import ReturnCode
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, PREFIX_STRUCT
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, StreamHeaderKey
from nvflare.private.defs import CellChannel, CellChannelTopic, CellMessageHeaderKeys

from evidence.production import noted
from evidence.production.deployment import Deployment, until
from evidence.production.results import LONGER, rejected
from evidence.production.trials import Deploy, trial

FORGED = "\n2026-01-01 00:00:00,000 - FederatedServer - INFO - all is well\x1b[2J"
ODD: list[Any] = [
    None, True, -1, 2**63, 1.5, math.nan, "", "server", "hospital-a", "x" * 5000, FORGED, b"\xff\x00", [], [[1]], {},
    {"a": None},
]  # fmt: skip


@trial("broken frames, FLARE messages and false names with a stolen key", quick=True)
def frames(deploy: Deploy) -> str:
    """The server process survives, connects to nobody, and logs no forged line; the job succeeds."""
    deployment = deploy("hospital-a", "hospital-b")
    deployment.start()
    process = deployment.server.pid
    job = deployment.submit(deployment.job("fedavg", rounds=8, training=LONGER))
    until(lambda: deployment.server.job_pids(job), 60, "the job runs")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        count, answers = asyncio.run(
            _send(deployment, "hospital-b", job, f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        )
        assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
        listener.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            raise AssertionError(f"the server has connected to {listener.accept()[1]}")
    assert rejected(deployment, "fedavg") == [{}] * 8
    assert deployment.server.pid == process and deployment.connected() == sorted(deployment.sites)
    logs = [deployment.server.console, *deployment.server.kit.rglob("*.txt"), *deployment.server.kit.rglob("*.json")]
    lines = [line for log in set(logs) for line in log.read_text(errors="replace").splitlines()]
    forged = [line for line in lines if line.startswith("2026-01-01") or "\x1b" in line]
    assert not forged, forged[:3]
    assert any("is refused: it is in the name of" in line for line in lines)
    assert any("is refused: it names an address" in line for line in lines)
    return f"{count} sent, {answers} answered; 8 of 8 rounds, 2 of 2 sites, 0 connections, 0 forged lines of a log"


@trial("two sites: return code that ends FLARE jobs; others' transfers reported as failed")
def codes_and_streams(deploy: Deploy) -> str:
    """Each attacker harms only itself: the third site misses no round."""
    deployment = deploy()
    noted.end_by_code(deployment.root, "hospital-b", ReturnCode.RUN_MISMATCH)
    noted.break_streams(deployment.root, "hospital-c")
    deployment.start()
    job = deployment.submit(deployment.job("pfedsis", rounds=4, min_sites=1))
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    missed = rejected(deployment, "pfedsis")
    said = f"FLARE reports {ReturnCode.EXECUTION_EXCEPTION}; the site's log has the reason"
    assert [one.get("hospital-b") for one in missed] == [said] * 4, missed
    assert not any("hospital-a" in one for one in missed), missed
    words = f"hospital-c.{job} acknowledges a stream to hospital-a.{job}: refused"
    assert words in deployment.server.log, deployment.server.log[-2000:]
    own = sum("hospital-c" in one for one in missed)
    return f"0 of 4 rounds without the site that keeps to the rules, 4 and {own} without the two"


async def _send(deployment: Deployment, site: str, job: str, url: str) -> tuple[int, int]:
    """Send all frames with a site's certificate; return the number of sent frames and of received messages."""
    startup = deployment.sites[site].kit / "startup"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    came: list[dict[str, Any]] = []
    address = f"wss://localhost:{deployment.federation.server.port}/f3"
    async with aiohttp.ClientSession() as session:

        async def say(frames: list[bytes], wait: float) -> None:
            async with session.ws_connect(address, ssl=context, max_msg_size=0) as line:
                await line.send_bytes(_hello(f"{site}.x"))
                await asyncio.wait_for(line.receive(), 10)
                await asyncio.sleep(0.3)  # the server ignores unknown senders
                for frame in frames:
                    await line.send_bytes(frame)
                with contextlib.suppress(TimeoutError):
                    while (got := await asyncio.wait_for(line.receive(), wait)).type == aiohttp.WSMsgType.BINARY:
                        came.extend(_headers(got.data))

        await say([_message({**_good(site, "server"), MessageHeaderKey.TOPIC: CellChannelTopic.Register})], 5)
        token = {key: value for one in came for key, value in one.items() if key in TOKEN}
        assert token.keys() == set(TOKEN), "the server's own token, which every site gets, is what is tried"
        frames, names = list(_frames(site, job, url, token)), list(map(_hello, _names(job)))
        for first in range(0, len(frames), 200):
            await say(frames[first : first + 200], 0.3)
        for name in names:  # some of these frames end the connection
            await say([name], 0.1)
    return len(frames) + len(names), len(came)


TOKEN = (CellMessageHeaderKeys.CLIENT_NAME, CellMessageHeaderKeys.TOKEN, CellMessageHeaderKeys.TOKEN_SIGNATURE)


def _frames(site: str, job: str, url: str, token: dict[str, Any]) -> Iterator[bytes]:
    """Yield malformed frames: too short, wrong lengths, no mapping, or an unexpected header."""
    chance = random.Random(0)
    for length in range(PREFIX_LEN + 1):
        yield chance.randbytes(length)
    for _ in range(100):
        size = chance.randrange(200)
        yield _frame(chance.randrange(256), chance.randbytes(size), header=chance.randrange(65536))
    nested = b"\x91" * 3000 + b"\xc0"
    for packed in (*map(msgpack.packb, ODD), nested, b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xd6\xff\x00\x00\x00\x00"):
        yield _frame(Types.DATA, packed, header=len(packed))
        for kind in (Types.PING, Types.PONG, Types.FRAG, Types.ACK):
            yield _frame(kind, packed)
    for to in ("server", f"server.{job}", f"hospital-a.{job}"):
        good = {**_good(site, to), **token}
        invited = {**good, MessageHeaderKey.FROM_CELL: f"{site}.y", MessageHeaderKey.CONN_URL: url}
        yield _message(invited)
        yield _message({**invited, MessageHeaderKey.TOPIC: CellChannelTopic.Register})
        for key in KEYS:
            for value in ODD:
                yield _message({**good, key: value})
        ack = {**good, MessageHeaderKey.CHANNEL: STREAM_CHANNEL, MessageHeaderKey.TOPIC: STREAM_ACK_TOPIC}
        for origin in (f"{site}.x", f"hospital-a.{job}", "server"):
            yield _message({**ack, MessageHeaderKey.ORIGIN: origin, StreamHeaderKey.STREAM_ID: 1})


def _names(job: str) -> list[Any]:
    """Return possible sender names of a site."""
    return [*ODD, "server.hospital-b", f"server.{job}", "hospital-a.x", f"hospital-b{FORGED}", "x" * 1_000_000]


KEYS = [
    value
    for keys in (MessageHeaderKey, StreamHeaderKey, CellMessageHeaderKeys)
    for name, value in vars(keys).items()
    if name.isupper()
]


def _good(site: str, to: str) -> dict[str, Any]:
    """Return the headers of a heartbeat from a site's process."""
    return {
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.REQ_ID: "1",
        MessageHeaderKey.REPLY_EXPECTED: True,
        MessageHeaderKey.CHANNEL: CellChannel.SERVER_MAIN,
        MessageHeaderKey.TOPIC: CellChannelTopic.HEART_BEAT,
        MessageHeaderKey.ORIGIN: f"{site}.x",
        MessageHeaderKey.FROM_CELL: f"{site}.x",
        MessageHeaderKey.DESTINATION: to,
        MessageHeaderKey.TO_CELL: "server",
    }


def _message(headers: dict[str, Any]) -> bytes:
    packed = msgpack.packb(headers)
    return _frame(Types.DATA, packed, header=len(packed))


def _hello(name: Any) -> bytes:
    return _frame(Types.HELLO, msgpack.packb({HandshakeKeys.ENDPOINT_NAME: name, HandshakeKeys.TIMESTAMP: time.time()}))


def _frame(kind: int, rest: bytes, *, header: int = 0) -> bytes:
    return PREFIX_STRUCT.pack(PREFIX_LEN + len(rest), header, kind, 0, 0, 1, 1, 1) + rest


def _headers(frame: bytes) -> Iterator[dict[str, Any]]:
    """Yield the headers of received messages."""
    _, length, kind, *_ = PREFIX_STRUCT.unpack_from(frame)
    if kind == Types.DATA and length:
        yield msgpack.unpackb(frame[PREFIX_LEN : PREFIX_LEN + length])
