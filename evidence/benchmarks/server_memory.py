"""Measure a server's memory over rounds of nine sites, without a transport (aim: at most 3 times the model and 1 GB).

    python -m evidence.benchmarks.server_memory

Each rule has its own process, whose peak (VmHWM) includes PyTorch and one site's answer, which is generated here.
FLARE's memory is not included; docs/results/benchmarks.md has it.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shared_components.common.atomic import write_json
from shared_components.common.machine import peak_memory_mb
from shared_components.core.bundle import load_bundle
from shared_components.core.card import Card
from shared_components.core.method import Models, Profile
from shared_components.core.partition import Partition, Piece, Role, cut, partition_network
from shared_components.federation.messages import Job, Reply
from shared_components.federation.runs.run_folder import describe
from shared_components.federation.server.runner import ServerRunner
from shared_components.flare.memory import let_go
from shared_components.networks.bundle_config import build_network

SITES, ROUNDS, SIDE, LAYERS = 9, 30, 1024, 20  # 21 M parameters
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedAvg, averaged over rounds": ("fedavg", {"swa": {"start": 1}}),
    "FedMedian": ("fedmedian", {}),
    "Krum": ("krum", {}),
}


def main(rounds: int = ROUNDS, layers: int = LAYERS) -> None:
    """Print a line for each rule."""
    megabytes = layers * SIDE * SIDE * 4 / 1e6
    print(f"{SITES} sites, {megabytes:.0f} MB of weights; the bound is {3 * megabytes + 1000:.0f} MB")
    for name, (method, arguments) in RULES.items():
        command = [sys.executable, "-m", __spec__.name, method, json.dumps(arguments), str(rounds), str(layers)]
        peaks = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{name:<30} {peaks[1]:6.0f} MB at most after 2 rounds, {peaks[-1]:6.0f} MB after {rounds}", flush=True)


def peaks_of(method: str, arguments: Mapping[str, Any], rounds: int, layers: int, folder: Path) -> list[float]:
    """Return this process's peak in MB after every round."""
    torch.set_num_threads(1)
    server, peaks = opened(method, arguments, rounds, layers, folder), []
    for _ in range(rounds):
        replies = {}
        for number, (site, message) in enumerate(server.round_messages().items()):
            header = {"round": server.state.round, "samples": 10 + number, "loss": {}, "metrics": {}}
            moved = {name: value + 1e-3 * number for name, value in message.pieces.items()}
            replies[site] = server.inbox.keep(site, Reply(header, moved))
            del moved
        server.finish_round(replies, {})
        del replies, message
        let_go()
        peaks.append(peak_memory_mb() or float("nan"))
    return peaks


def opened(
    method: str,
    arguments: Mapping[str, Any],
    rounds: int,
    layers: int,
    folder: Path,
    *,
    sites: int = SITES,
    **settings: Any,  # of the job
) -> ServerRunner:
    """Return a server after the enrolment of its sites; with 0 ``layers``, of the method's bundle's network."""
    job = Job("memory", method if layers == 0 else "pvt_fpn", method, arguments=arguments, rounds=rounds, **settings)
    server = ServerRunner(job, [f"site-{number + 1}" for number in range(sites)], folder)
    state, names = server.state, [f"layer{number}.weight" for number in range(layers)]
    if layers:
        state.partition = Partition(tuple(Piece(name, Role.GLOBAL) for name in names))
        weights = {name: torch.randn(SIDE, SIDE) for name in names}
    else:
        network = build_network(load_bundle(method).network)
        state.partition, weights = partition_network(network, server.method.partition), network.state_dict()
    mixed = {site: cut(weights, state.partition, Role.MIXED) for site in state.sites}
    state.models = Models(cut(weights, state.partition, Role.GLOBAL), mixed)
    card = Card("segmentation", ("background", "instrument"))
    state.profiles = {site: Profile(site, 10 + number, card) for number, site in enumerate(state.sites)}
    state.aggregator = server.method.server.aggregator.init(
        state.partition, state.models, list(state.profiles.values())
    )
    write_json(folder / "run.json", describe(job, server.method, state.sites, {}))
    return server


if __name__ == "__main__":
    if sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            given = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
            print(json.dumps(peaks_of(*given, Path(scratch))))
    else:
        main()
