"""Time an adaptive SAM step of ViT-B compared with a plain step (aim: at most 2.2).

`python -m evidence.benchmarks.sam_step [BATCH] [ARCHITECTURE]`; default: batch 4 at 224 pixels in one thread. Both
kinds of step use AdamW and take turns; the lowest processor time of each counts.
"""

import sys
import time

import torch

from shared_components.core.method import load_method
from shared_components.core.partition import partition_network
from shared_components.core.task import make_task
from shared_components.core.training import make_context, make_optimizer, train_step
from shared_components.core.training_settings import Training
from shared_components.networks.mae_vit import MaeVit

REPEATS = 2


def main(batch_size: int = 4, architecture: str = "base") -> None:
    """Print both times and their ratio."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = MaeVit(architecture=architecture)
    side = network.patch * network.side
    task = make_task("reconstruction", {"patch": network.patch, "pixels": "normalised"})
    training = Training(height=side, width=side, batch_size=batch_size, iterations=1)
    batch = task.add_randomness({"image": torch.rand(batch_size, 3, side, side)}, torch.Generator().manual_seed(0))
    methods = {"plain": load_method("fedavg"), "ASAM": load_method("fedsam", adaptive=True, rho=0.7, eta=0.2)}
    optimizer = make_optimizer(network, training)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(REPEATS):
        for name, method in methods.items():
            context = make_context(training, task, round=0, site=0, rounds=1)
            started = time.process_time()
            train_step(network, optimizer, method, batch, context, partition_network(network, method.partition))
            seconds[name].append(time.process_time() - started)
    plain, asam = (min(seconds[name]) for name in methods)
    print(f"a step of {architecture}, batch {batch_size}: ASAM {asam:.2f} s / plain {plain:.2f} s = {asam / plain:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
