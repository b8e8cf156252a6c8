"""Measure the server's cost per round by number of sites and parameters, and fit the exponents.

python -m evidence.benchmarks.scaling --wire float32,bf16

Sites are simulated: their updates are generated here in the wire format, and the server stores, checks, sums and saves
them. FLARE and training are not included. Each size has its own process, whose peak memory (VmHWM) includes PyTorch and
one update.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from evidence.benchmarks.server_memory import SIDE, opened
from shared_components.common.machine import peak_memory_mb
from shared_components.federation.messages import Reply, Wire
from shared_components.federation.messages.wire_format import pack_change, unpack
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.flare.memory import keep_no_large_pieces

SITES, LAYERS = (3, 8, 16, 32, 64), (7, 14, 28, 56, 112)  # a layer has a million parameters
ROUNDS = 2  # only the last round counts


def measure(method: str, wire: Wire, sites: int, layers: int, folder: Path) -> dict[str, float]:
    """Return the cost of the server's last round: processor and elapsed seconds, peak and sent megabytes."""
    torch.set_num_threads(1)
    keep_no_large_pieces()
    server = opened(method, {}, ROUNDS, layers, folder, sites=sites, wire=wire)
    found: dict[str, float] = {}
    for _ in range(ROUNDS):
        found = {"processor": 0.0, "elapsed": 0.0}
        replies = {}
        messages = _timed(found, server.round_messages)
        for number, (site, sent) in enumerate(messages.items()):
            header = {"round": server.state.round, "samples": 10 + number, "loss": {}, "metrics": {}}
            received = dict(unpack(sent.pieces, wire))
            moved = {name: value + 1e-3 * (1 + number) for name, value in received.items()}
            reply = Reply(header, pack_change(moved, received, wire))
            del received, moved
            replies[site] = _timed(found, lambda s=site, r=reply: server.inbox.keep("round", s, r))
            del reply
        _timed(found, lambda r=replies: server.finish_round(r, {}))
        del replies, messages, sent
    sizes = [way["global"] for r in server.records if r["kind"] == "site" for way in r["bytes"].values()]
    return {**found, "peak MB": peak_memory_mb() or float("nan"), "sent MB": sum(sizes) / ROUNDS / 1e6}


def _timed(found: dict[str, float], work: Callable[[], Mapping]) -> Mapping:
    began = time.process_time(), time.perf_counter()
    done = work()
    found["processor"] += time.process_time() - began[0]
    found["elapsed"] += time.perf_counter() - began[1]
    return done


def exponent(sizes: list[float], costs: list[float]) -> float:
    """Return b of the least-squares fit cost = a * size ** b."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default="fedavg,krum")
    parser.add_argument("--wire", default="float32")
    parser.add_argument("--most-sites", type=int, default=SITES[-1])
    parser.add_argument("--most-layers", type=int, default=LAYERS[-1])
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(*args.one[:2], *map(int, args.one[2:]), Path(folder))))
        return
    print(f"commit {commit()}, {hardware()}, one thread")
    for method in args.methods.split(","):
        for wire in args.wire.split(","):
            lines = {
                "sites": [(sites, (sites, LAYERS[0])) for sites in SITES if sites <= args.most_sites],
                "million parameters": [
                    (layers * SIDE**2 / 1e6, (SITES[0], layers)) for layers in LAYERS if layers <= args.most_layers
                ],
            }
            for what, sizes in lines.items():
                _print_line(method, wire, what, sizes)


def _print_line(method: str, wire: str, what: str, sizes: list[tuple[float, tuple[int, int]]]) -> None:
    rows: list[dict[str, float]] = []
    for size, (sites, layers) in sizes:
        command = [sys.executable, "-m", __spec__.name, "--one", method, wire, str(sites), str(layers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append({"size": size, **json.loads(done.stdout)})
        texts = (f"{name} {value:.3g}" for name, value in rows[-1].items() if name != "size")
        print(f"  {method}, {wire}, {size:.3g} {what}: {', '.join(texts)}", flush=True)
    if len(rows) > 1:
        named = [key for key in rows[0] if key != "size"]
        fitted = {key: exponent([row["size"] for row in rows], [row[key] for row in rows]) for key in named}
        print(f"{method}, {wire}: with {what} to the power of {', '.join(f'{k} {b:.2f}' for k, b in fitted.items())}")


if __name__ == "__main__":
    main()
