"""Time the server's aggregation, compared with one line of PyTorch on the same bytes.

Eight sites send PVTv2-b0 with two decoders in float32. The PyTorch lines get each site's weights as one vector, made
in advance. The aggregators sum about 240 tensors in float64, in the order of the sites. Memory is the growth of a new
process beyond the updates, including the new model.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from evidence.benchmarks.turns import fastest
from shared_components.core.bundle import load_bundle
from shared_components.core.method import Models, Profile, Update, load_method
from shared_components.core.partition import Partition, Pieces
from shared_components.networks.bundle_config import build_network

SITES = 8
REPEATS = 3
# method, its arguments, name of the PyTorch line, and its function of (K, N) stacked vectors
VARIANTS: dict[str, tuple[dict, str, Callable[[Tensor], Tensor] | None]] = {
    "fedavg": ({}, "stack, mean", lambda stacked: stacked.mean(0)),
    "fedmedian": ({}, "stack, median", lambda stacked: stacked.median(0).values),
    "trimmed_mean": ({"trim": 2}, "stack, sort, mean", lambda stacked: stacked.sort(0).values[2:-2].mean(0)),
    "krum": ({"faults": 2}, "stack, cdist", lambda stacked: torch.cdist(stacked, stacked)),
    "multi_krum": ({"faults": 2}, "stack, cdist", lambda stacked: torch.cdist(stacked, stacked)),
    "fedavgm": ({}, "", None),
    "fedadam": ({}, "", None),
    "qfedavg": ({}, "", None),
}


def updates_of(shapes: dict[str, torch.Size]) -> list[Update]:
    """Draw eight sites' weights."""
    generator = torch.Generator().manual_seed(0)
    loss = {"loss": {"value": torch.tensor(0.5)}}
    return [
        Update(
            f"site-{i + 1}",
            0,
            {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()},
            loss,
            samples=100 + i,
        )
        for i in range(SITES)
    ]


def best_seconds(work: Callable[[], object]) -> float:
    """Return the fastest of some runs."""
    return fastest({"": work}, REPEATS, clock=time.perf_counter)[""]


def measure(name: str) -> dict[str, float]:
    """Time one method and its PyTorch line in this process."""
    arguments, _, one_line = VARIANTS[name]
    method = load_method(name, **arguments)
    with torch.device("meta"):
        state = build_network(load_bundle("pvt_fpn").network).state_dict()
    updates = updates_of({key: value.shape for key, value in state.items()})
    start: Pieces = {key: torch.zeros_like(value) for key, value in updates[0].pieces.items()}
    models, partition = Models(start, {}), Partition(())
    kept = method.server.aggregator.init(partition, models, [Profile(u.site, u.samples, ()) for u in updates])
    elements = sum(value.numel() for value in start.values())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    method.server.aggregator.apply(kept, partition, models, updates)
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    found = {
        "tensors": len(start),
        "millions": elements / 1e6,
        "memory": extra / (4 * elements * SITES),
        "seconds": best_seconds(lambda: method.server.aggregator.apply(kept, partition, models, updates)),
    }
    if one_line is not None:
        flat = [torch.cat([value.reshape(-1) for value in u.pieces.values()]) for u in updates]
        found["one_line"] = best_seconds(lambda: one_line(torch.stack(flat)))
    return found


def main() -> None:
    """Print the ratios, each measured in its own process."""
    rows = {}
    for name in VARIANTS:
        command = [sys.executable, "-m", "evidence.benchmarks.aggregation", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows[name] = json.loads(done.stdout.splitlines()[-1])
    first = rows["fedavg"]
    print(f"the server's step, {SITES} sites x {first['millions']:.2f} M float32 in {first['tensors']} tensors")
    for name, row in rows.items():
        ratio = f"/ ({VARIANTS[name][1]}) {row['seconds'] / row['one_line']:5.2f}" if "one_line" in row else ""
        print(f"  {name:13} {row['seconds']:6.3f} s   memory / updates {row['memory']:5.2f}   {ratio}".rstrip())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
