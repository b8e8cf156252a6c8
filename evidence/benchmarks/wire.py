"""Measure the effect of bfloat16 on the wire on Dice, and the errors of rounded weights and rounded changes.

python -m evidence.benchmarks.wire

FedAvg and PFedSIS run with `wire` float32 and bf16 on rendered sites with several seeds, from the shipped weights;
about 20 minutes of processor time. The trained weights of each float32 round are also rounded both ways and compared
with the exact weights.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from evidence.benchmarks.site_round import render
from shared_components.federation.in_process import answer, open_together
from shared_components.federation.messages import BF16, FLOAT32, Job, Message, Wire, wire_format
from shared_components.federation.protocol import Answers, Ask, run_federation
from shared_components.federation.runs.provenance import commit, hardware

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"bundle": "pvt_fpn"},
    "pfedsis": {"bundle": "pfedsis", "arguments": {"sensitivity_images": 4}},
}
WIRES: tuple[Wire, ...] = (FLOAT32, BF16)


class Loss:
    """Errors of both ways of rounding, over all tensors that travel rounded."""

    def __init__(self) -> None:
        self.squares = {"change": 0.0, "as weights": 0.0, "as changes": 0.0}
        self.moved = self.still = 0

    def add(self, sent: Message, reply: Message) -> None:
        """Add a site's float32 reply to the errors."""
        for name, trained in reply.pieces.items():
            if trained.dim() < 2 or trained.dtype != torch.float32:
                continue
            change = trained - sent.pieces[name]
            weights = trained.bfloat16().float() - sent.pieces[name].bfloat16().float()
            changes = wire_format.pack({name: change}, BF16)[name].float()
            self.squares["change"] += float(change.square().sum())
            self.squares["as weights"] += float((weights - change).square().sum())
            self.squares["as changes"] += float((changes - change).square().sum())
            self.moved += int((change != 0).sum())
            self.still += int(((change != 0) & (weights == 0)).sum())

    def __str__(self) -> str:
        errors = {key: (value / self.squares["change"]) ** 0.5 for key, value in self.squares.items()}
        return (
            f"error / change: rounded weights {errors['as weights']:.3f}, rounded changes {errors['as changes']:.5f}; "
            f"{self.still / self.moved:.0%} of the numbers that move do not move as rounded weights"
        )


def run(job: Job, scenes: list[Path], folder: Path, loss: Loss) -> tuple[float, float]:
    """Return the sites' final mean Dice, and the megabytes of a site's round in both directions."""
    server, sites = open_together(job, {f"site-{i}": path for i, path in enumerate(scenes, 1)}, folder, resume=False)

    def exchange(ask: Ask) -> Answers:
        answers = answer(ask, sites)
        if ask.task == "round" and job.wire == FLOAT32:
            for name, reply in answers.replies.items():
                loss.add(ask.messages[name], reply)
        return answers

    run_federation(server, exchange)
    dice = [record["dice"]["mean"] for record in server.records if record["kind"] == "final"]
    sizes = server.records[0]["bytes"]
    return mean(dice), sum(sum(way.values()) for way in sizes.values()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--sites", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"commit {commit()}, {hardware()}, {args}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        scenes = render(Path(place), args.sites)
        for method, settings in METHODS.items():
            loss, ends = Loss(), dict[Wire, list[float]]()
            for wire in WIRES:
                for seed in map(int, args.seeds.split(",")):
                    training = {"height": 96, "width": 128, "batch_size": 2, "iterations": args.iterations}
                    training |= {"learning_rate": 5e-4, "start": "rendered", "seed": seed}
                    job = Job(f"{method}-{wire}-{seed}", method=method, training=training, rounds=args.rounds,
                              wire=wire, **settings)  # fmt: skip
                    began = time.process_time()
                    dice, megabytes = run(job, scenes, Path(place) / "runs", loss)
                    ends.setdefault(wire, []).append(dice)
                    print(f"  {method:8} {wire:8} seed {seed}: Dice {dice:.4f}, {megabytes:6.2f} MB a round both ways, "
                          f"{time.process_time() - began:.0f} s", flush=True)  # fmt: skip
            spread = max(ends[FLOAT32]) - min(ends[FLOAT32])
            apart = mean(ends[BF16]) - mean(ends[FLOAT32])
            print(f"{method}: bf16 - float32 {apart:+.4f}, spread of float32's seeds {spread:.4f}; {loss}", flush=True)


if __name__ == "__main__":
    main()
