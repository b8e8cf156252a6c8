"""Measure the cost of noise on updates: Dice, bytes and seconds of three methods on small rendered sites.

    python -m evidence.benchmarks.privacy

Three sites train the toy network of `networks.tiny` without noise and with three noise levels. The lowest level is
almost no noise, and shows the effect of clipping and of equal weights. The noise of this benchmark is seeded; the noise
of a hospital is not.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.benchmarks.site_round import render
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.federation.privacy.gaussian import epsilon
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.networks import bundle_config
from shared_components.weights.bundle_files.make import write_bundle

METHODS = ("fedavg", "fedper", "pfedla")
LEVELS = (None, 0.001, 0.01, 0.1)  # noise multipliers
CLIP, SEED = 6.0, 0  # norm of a clipped update; here running statistics have a norm of 3 to 7, weights of 1 to 4
ROUNDS = 14
TRAINING = {
    "height": 64,
    "width": 96,
    "batch_size": 4,
    "iterations": 20,
    "rounds": ROUNDS,
    "learning_rate": 1e-2,
    "seed": SEED,
}
BUNDLE = """\
title: A toy
network_def: |
  _target_: shared_components.networks.tiny.Tiny
  out_channels: 4
  dropout: 0.0
tasks: |
  segmentation: {}
training: {height: 64, width: 96, batch_size: 4, iterations: 20, rounds: 8, learning_rate: 1.0e-2}
metadata: {name: Toy, task: to be small, description: A network for measurements., references: []}
"""


def measure(method: str, noise: float | None, sites: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Run one federation; return its scores and costs."""
    privacy = {} if noise is None else {"clip": CLIP, "noise_multiplier": noise}
    name = f"{method}-{noise}"
    job = Job(name, "toy", method, training=TRAINING, rounds=ROUNDS, largest_change=1e6, privacy=privacy)
    started = time.perf_counter()
    server = run_together(job, sites, folder, random=np.random.default_rng(SEED).bytes)
    seconds = time.perf_counter() - started
    finals = [json.loads((server.folder / site / "final.json").read_text("utf-8")) for site in server.state.sites]
    own = [server.folder / site / "privacy.json" for site in server.state.sites]
    spent = [json.loads(path.read_text("utf-8")) for path in own if path.is_file()]
    rounds = [r for r in server.records if r["kind"] == "site" and r["round"] < ROUNDS]
    return {
        "method": method,
        "noise": noise,
        "epsilon": spent[0]["epsilon"] if spent else None,
        "dice": statistics.mean(final["dice"]["mean"] for final in finals),
        "worst": min(final["dice"]["mean"] for final in finals),
        "clipped": sum(s["clipped"] for s in spent) / sum(s["updates"] for s in spent) if spent else None,
        "megabytes": statistics.mean(sum(r["bytes"]["up"].values()) for r in rounds) / 1e6,
        "seconds": seconds,
    }


def make_bundle(folder: Path) -> None:
    """Make `toy` the only bundle."""
    folder.mkdir(parents=True)
    (folder / "toy.yaml").write_text(BUNDLE)
    (folder.parent / "LICENSE").write_text((Path(__file__).parents[2] / "LICENSE").read_text("utf-8"))
    write_bundle("toy", folder)
    bundle_config.bundles_folder = lambda: folder


def main(folder: Path) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    sites = {f"site-{n}": path for n, path in enumerate(render(folder / "sites", 3), start=1)}
    make_bundle(folder / "made" / "bundles")
    print("| method | noise | epsilon | Dice, mean and worst site | updates clipped | MB up | s |")
    print("|---|---|---|---|---|---|---|")
    for method in METHODS:
        for noise in LEVELS:
            row = measure(method, noise, sites, folder / "runs")
            private = ("none", "–", "–")
            if noise is not None:
                private = (f"{noise:g}", f"{row['epsilon']:.3g}", f"{100 * row['clipped']:.0f} %")
            scores = f"{100 * row['dice']:.1f} %, {100 * row['worst']:.1f} %"
            print(
                f"| {method} | {private[0]} | {private[1]} | {scores} | {private[2]} | {row['megabytes']:.3f} | "
                f"{row['seconds']:.1f} |",
                flush=True,
            )
    needed = next(z for z in np.geomspace(0.1, 1e4, 400) if epsilon({float(z): ROUNDS}, 1e-5) <= 1)
    print(f"\nfor an epsilon of 1 after {ROUNDS} rounds: a noise of {needed:.0f}")


if __name__ == "__main__":
    print(f"commit {commit()}, {hardware()}, seed {SEED}, one thread\n")
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
