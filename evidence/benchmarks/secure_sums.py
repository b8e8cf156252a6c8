"""Measure the cost of secure aggregation compared with plain sums: bytes and seconds per round, and Dice.

python -m evidence.benchmarks.secure_sums
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.benchmarks.site_round import render
from shared_components.core.aggregators.mean import mean_pieces
from shared_components.core.bundle import load_bundle
from shared_components.core.method import Update
from shared_components.core.partition import Pieces
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job, total_bytes
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.federation.secure_sums.fixed_point import FixedPoint
from shared_components.federation.secure_sums.keys import Keys, public_of
from shared_components.federation.secure_sums.masks import Attempt, Masked, mask, take_off, unmask
from shared_components.networks.bundle_config import build_network

COUNTS = (3, 9)
SAMPLES = 1000
TRAINING = {"height": 64, "width": 96, "batch_size": 2, "iterations": 20, "learning_rate": 5e-4, "start": "rendered"}
ROUNDS = 3


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Call a function; return its processor seconds and its result."""
    started = time.process_time()
    found = work()
    return time.process_time() - started, found


def keys_of(count: int) -> dict[str, Keys]:
    """Return every site's keys."""
    private = {f"site-{number + 1}": bytes([number + 1]) * 32 for number in range(count)}
    public = {site: public_of(key) for site, key in private.items()}
    return {site: Keys(site, key, public) for site, key in private.items()}


def costs(count: int, pieces: Pieces, *, absent: int = 0) -> dict[str, float]:
    """Measure one sum; some sites drop out before their upload."""
    keys, point = keys_of(count), FixedPoint(count * SAMPLES)
    attempt = Attempt("bench/run", 0, "a", tuple(keys), count // 2 + 1)
    masked: dict[str, Masked] = {}
    seconds = {"encode": 0.0, "mask": 0.0, "open": 0.0}
    for site in attempt.sites[absent:]:
        seconds["encode"], vector = timed(lambda: point.encode(pieces, SAMPLES))
        seconds["mask"], masked[site] = timed(lambda vector=vector, site=site: mask(vector, attempt, keys[site]))
    opened = {}
    for site in masked:
        sealed = {sender: sent.shares[site] for sender, sent in masked.items()}
        seconds["open"], opened[site] = timed(lambda site=site, sealed=sealed: unmask(attempt, keys[site], sealed))
    one = masked[attempt.sites[-1]]
    seconds["server"], total = timed(lambda: take_off(attempt, masked, opened))
    found = point.decode(total, SAMPLES * len(masked), pieces)
    error = max(float((found[name].double() - pieces[name].double()).abs().max()) for name in pieces)
    updates = [Update(site, 0, pieces, samples=SAMPLES) for site in masked]
    seconds["plain"], _ = timed(lambda: mean_pieces(updates, pieces))
    shares = sum(map(len, one.shares.values())) + sum(map(len, one.hashes.values()))
    row = next(iter(opened.values()))
    return seconds | {
        "up": one.vector.nbytes + shares,
        "small": shares,
        "unmask_down": sum(len(sent.shares[attempt.sites[-1]]) for sent in masked.values()),
        "unmask_up": sum(len(share) for shares in row.values() for share in shares),
        "factor": (one.vector.nbytes + shares) / total_bytes(pieces),
        "error": error,
    }


def compare(folder: Path, method: str, secure: dict[str, int]) -> tuple[list[float], float, Pieces]:
    """Run a small federation; return each site's final Dice, the seconds per round, and the weights."""
    scenes = {f"site-{n + 1}": path for n, path in enumerate(render(folder / "scenes", 3))}
    job = Job("bench", "pvt_fpn", method, training=TRAINING, rounds=ROUNDS, secure_sums=secure)
    seconds, server = timed(lambda: run_together(job, scenes, folder / f"runs-{bool(secure)}"))
    ends = [record for record in server.records if record["kind"] == "site"][-3:]
    return ([record["metrics"]["dice"]["mean"] for record in ends], seconds / ROUNDS, server.state.models.shared)


def main(folder: Path) -> None:
    """Print the table of costs, then Dice with and without secure aggregation."""
    network = build_network(load_bundle("pvt_fpn").network)
    pieces = {name: value.detach() for name, value in network.state_dict().items()}
    print(f"{sum(v.numel() for v in pieces.values())} parameters, {total_bytes(pieces)} bytes plain")
    for count in COUNTS:
        for absent in (0, 1):
            row = costs(count, pieces, absent=absent)
            print(
                f"{count} sites, {absent} absent: up {row['up']:.0f} bytes ({row['factor']:.3f} x plain, of it "
                f"{row['small']:.0f} shares), unmask {row['unmask_down']:.0f} down {row['unmask_up']:.0f} up; a site: "
                f"{row['encode']:.2f} s whole numbers, {row['mask']:.2f} s mask, {row['open']:.3f} s open; "
                f"server: {row['server']:.2f} s (plain mean {row['plain']:.2f} s); largest error {row['error']:.2g}"
            )
    torch.set_num_threads(1)
    plain, secure = (compare(folder, "fedavg", section) for section in ({}, {"threshold": 2}))
    for name, (dice, seconds, _) in {"plain": plain, "secure": secure}.items():
        print(
            f"FedAvg {name}: Dice {np.mean(dice):.4f} ({', '.join(f'{d:.4f}' for d in dice)}), {seconds:.1f} s a round"
        )
    apart = max(float((plain[2][name] - secure[2][name]).abs().max()) for name in plain[2])
    print(f"after {ROUNDS} rounds the weights differ by at most {apart:.2g}")


if __name__ == "__main__":
    print(f"commit {commit()}, {hardware()}, one thread per site")
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
