"""Measure the time that a feature cache saves per training step of SurgFed, and its rounding error.

The cache stores features of the frozen encoder.

A step includes all work for a batch: a clip of two frames, hashed, read from disk or encoded, forward, backward and the
optimizer. Steps with and without a cache take turns. The fastest of each counts, in processor time of one thread.
Files are read from the page cache.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from shared_components.core.feature_cache import FeatureCache, open_cache
from shared_components.core.method import load_method
from shared_components.core.partition import Partition, partition_network, train_mode
from shared_components.core.task import Task, make_task
from shared_components.core.training import make_context, make_optimizer, train_step
from shared_components.core.training_settings import Training
from shared_components.data.collate import collate
from shared_components.data.transforms import to_tensors
from shared_components.networks.sam2_video import Sam2Clips

FRAMES = 2
SIZES = {("small", 512): 3, ("cpu", 128): 20}  # architecture and side: number of steps
OBJECTS = (1, 3)
STEPS = 20  # steps of the comparison of weights
NUMBERS = {
    "cross_entropy": 1.0,
    "log_iou": 0.0,
    "frames": FRAMES,
    "interval": 1.0,
    "targets_of": "all",
    "prompts": "first",
}


def main(sizes: dict[tuple[str, int], int] = SIZES) -> None:
    """Print all parts."""
    torch.set_num_threads(1)
    print("a step, 2 frames, batch 1 (aim for small at 512 with one object: 2 times as fast)")
    for (architecture, side), repeats in sizes.items():
        for objects in OBJECTS:
            with TemporaryDirectory() as folder:
                print_step(architecture, side, objects, repeats, Path(folder))
    with TemporaryDirectory() as folder:
        print_weights(Path(folder))


def print_step(architecture: str, side: int, objects: int, repeats: int, folder: Path) -> None:
    """Print the fastest step with and without a cache, and the bytes per frame."""
    trained = Steps(architecture, side, objects)
    cache = trained.open(folder)
    cache(trained.frames)
    size = next(folder.rglob("*.safetensors")).stat().st_size
    best = {None: float("inf"), cache: float("inf")}
    for _ in range(repeats):
        for used, before in best.items():
            started = time.process_time()
            trained.step(used)
            best[used] = min(before, time.process_time() - started)
    started = time.process_time()
    cache(trained.frames)
    read = time.process_time() - started
    plain, cached = best.values()
    print(
        f"  {architecture} at {side}, {objects} objects: {plain * 1e3:.0f} ms, cached {cached * 1e3:.0f} ms "
        f"({read * 1e3:.0f} of them reading) = {plain / cached:.2f}; {size:,} bytes a frame",
        flush=True,
    )


def print_weights(folder: Path) -> None:
    """Print the difference of the weights with and without a cache after some steps, and the change of the weights."""
    found = []
    for cached in (True, False):
        trained = Steps("cpu", 128, 3)
        before = [p.detach().clone() for p in trained.network.parameters()]
        cache = trained.open(folder) if cached else None
        for _ in range(STEPS):
            trained.step(cache)
        found.append([p.detach() - b for p, b in zip(trained.network.parameters(), before, strict=True)])
    apart, moved = (
        torch.cat([x.flatten() for x in xs]) for xs in ([a - b for a, b in zip(*found, strict=True)], found[1])
    )
    print(f"  {STEPS} steps of cpu at 128: weights apart by {apart.norm():.2e}, moved by {moved.norm():.2e}")


class Steps:
    """A network that trains on one clip of noise with rectangles as objects."""

    def __init__(self, architecture: str, side: int, objects: int) -> None:
        torch.manual_seed(0)
        self.settings = Training(learning_rate=1e-4, weight_decay=0.0, flips=False, crops=False, feature_cache_gb=1)
        self.network = Sam2Clips(out_channels=objects + 1, architecture=architecture, size=side, dropout=0.0)
        self.method = load_method("local")
        self.partition: Partition = partition_network(self.network, self.method.partition)
        self.task: Task = make_task("segmentation", NUMBERS, classes=[str(n) for n in range(objects + 1)])
        self.optimizer = make_optimizer(self.network, self.settings)
        random = np.random.default_rng(0)
        self.frames = random.integers(0, 256, (FRAMES, side, side, 3), dtype=np.uint8)
        self.label = np.zeros((FRAMES, side, side), np.uint8)
        for n in range(objects):
            self.label[:, side // 4 : side // 2, n * side // 4 : (n + 1) * side // 4] = n + 1
        train_mode(self.network, self.partition)

    def open(self, folder: Path) -> FeatureCache:
        cache = open_cache(self.network, self.partition, self.settings, folder)
        assert cache is not None
        return cache

    def step(self, cache: FeatureCache | None) -> None:
        item = to_tensors(self.frames, {"label": self.label}) | ({} if cache is None else cache(self.frames))
        context = make_context(self.settings, self.task, round=0, rounds=1, site=0)
        batch = self.task.add_randomness(collate([item]), context.generator)
        train_step(self.network, self.optimizer, self.method, batch, context, self.partition)


if __name__ == "__main__":
    main()
