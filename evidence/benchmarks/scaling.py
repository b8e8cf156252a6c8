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
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.flare.memory import let_go

SITES, LAYERS = (3, 8, 16, 32, 64, 128, 256), (7, 14, 28, 56, 112)  # a layer has a million parameters
OWN_NETWORK = {"pfedsis": (3, 32, 64)}  # sites of methods that need the network of their bundle
ROUNDS = 2  # only the last round counts


def measure(method: str, wire: Wire, sites: int, layers: int, folder: Path) -> dict[str, float]:
    """Return the cost of the server's last round: processor and elapsed seconds, peak and sent megabytes."""
    torch.set_num_threads(1)
    server = opened(method, {}, ROUNDS, layers, folder, sites=sites, wire=wire)
    found: dict[str, float] = {}
    for _ in range(ROUNDS):
        found = {"processor": 0.0, "elapsed": 0.0}
        replies = {}
        messages = _timed(found, server.round_messages)
        for number, (site, sent) in enumerate(messages.items()):
            header = {"round": server.state.round, "samples": 10 + number, "loss": {}, "metrics": {}}
            step = 1e-3 * (1 + number)
            moved = {
                name: torch.full_like(value, step) if value.dtype == torch.bfloat16 else value + step
                for name, value in sent.pieces.items()
            }
            extras = {
                group: {name: torch.rand(shape) for name, shape in extra.shapes(server.state.models.shared, {}).items()}
                for group, extra in server.method.local.extras.items()
            }
            reply = Reply(header, moved, extras)
            del moved, extras
            replies[site] = _timed(found, lambda s=site, r=reply: server.inbox.keep(s, r))
            del reply
        _timed(found, lambda r=replies: server.finish_round(r, {}))
        del replies, messages, sent
        _timed(found, let_go)
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
    parser.add_argument("--most-sites", type=int, default=64)
    parser.add_argument("--layers", type=int, default=LAYERS[0], help="million parameters of each site's model")
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
            counts, layers = OWN_NETWORK.get(method, SITES), 0 if method in OWN_NETWORK else args.layers
            lines = {"sites": [(sites, (sites, layers)) for sites in counts if sites <= args.most_sites]}
            if layers:
                lines["million parameters"] = [
                    (more * SIDE**2 / 1e6, (SITES[0], more)) for more in LAYERS if more <= args.most_layers
                ]
            for what, sizes in lines.items():
                print_line(method, wire, what, sizes)


def print_line(method: str, wire: str, what: str, sizes: list[tuple[float, tuple[int, int]]]) -> None:
    """Print a line for each size, (number of sites, layers), and the exponents; each size has its own process."""
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
