"""How fast frames reach the training, and how long a GPU waits for them.

python -m evidence.benchmarks.input_pipeline

Frames of 1280x1024 (PNG, with PNG masks) become batches of 8 at 512x640. Speed is in frames per second of processor
time, so that it holds for one core. The GPU is emulated: a step sleeps for a time per frame, and work on the GPU's
pixels costs only its launches, see `emulated_gpu`. "Busy" is the share of sleep in a round's time.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import torch
from torch import Tensor

from shared_components.data import dataset as datasets
from shared_components.data.collate import BatchBuffer, BatchStream
from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.device_transforms import augment_batch
from shared_components.data.frame_cache import FrameCache
from shared_components.data.prefetch import AHEAD
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.data.targets import FORMS, is_map
from shared_components.scenes.site import write_site

FRAMES, BATCH, HEIGHT, WIDTH = 32, 8, 512, 640
STEPS = 40  # of a round with an emulated GPU
REPEATS = 3


def main(folder: Path) -> None:
    """Print both tables."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    counts = {"train": 1, "validation": 1}
    options = {"layout": "endovis2018", "height": 1024, "width": 1280, "frames_per_video": FRAMES, "videos": counts}
    site = load_site(write_site(folder / "site", look="rose", seed=1, **options))
    cache = FrameCache(folder / "cache", limit=10**10)
    print(f"| frames of 1280x1024 at {WIDTH}x{HEIGHT}, one core | frames/s |\n|---|---:|")
    files = [sample.images[0] for sample in samples(site, "train")]
    print(f"| OpenCV: decode and resize images | {speed(lambda: [resized(file) for file in files]):.1f} |", flush=True)
    kinds = [("decoded each time", None), ("from the frame cache", cache)]
    for name, chosen in kinds:
        for where, device in (("the CPU", "cpu"), ("the GPU", "meta")):
            with emulated_gpu():
                rate = speed(lambda chosen=chosen, device=device: stream(site, chosen, device=device))
            print(f"| {name}, augmented on {where} | {rate:.1f} |", flush=True)
    print("\n| emulated GPU: busy | 8 ms a frame | 1 ms a frame |\n|---|---:|---:|")
    for name, chosen, augments in (*((*kind, True) for kind in kinds), ("from the frame cache", cache, False)):
        for workers in (0, 1, 4):
            with emulated_gpu(augments=augments):
                shares = [busy(site, chosen, workers, milliseconds) for milliseconds in (8, 1)]
            where = "the GPU" if augments else "the CPU"
            values = " | ".join(f"{share:.0%}" for share in shares)
            print(f"| {name}, augmented on {where}, {workers} workers | {values} |", flush=True)


@contextmanager
def emulated_gpu(*, augments: bool = True) -> Iterator[None]:
    """Let batches on PyTorch's device `meta` cost the CPU what an NVIDIA GPU costs it.

    Threads launch the augmentation, here of 8x8 pixels. Memory for batches is used again, as pinned memory is. Without
    ``augments``, the CPU augments.
    """
    with (
        patch.object(datasets, "AUGMENTING_DEVICES", ("meta",) if augments else ()),
        patch.object(datasets, "augment_batch", lambda batch: augment_batch(_small(_forms(batch)))),
        patch.object(BatchBuffer, "_empty", lambda self, array: next(_memory(self._size, array.shape, array.dtype))),
        patch.object(BatchStream, "make", lambda self, batch: partial(lambda made: made, batch())),
    ):
        yield


Forms = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


def _forms(batch: Mapping[str, Tensor]) -> Forms:
    return tuple((name, value.shape, value.dtype) for name, value in batch.items())


@cache
def _small(forms: Forms) -> dict[str, Tensor]:
    """Return a batch with the same names and parameters, and 8x8 pixels."""
    small = {}
    for name, shape, dtype in forms:
        if name == "image":
            shape = (*shape[:2], 8, 8, 3)
        elif name in FORMS and is_map(name):
            shape = (*shape[:-2], 8, 8)
        small[name] = torch.ones(shape, dtype=dtype)
    return small


@cache
def _memory(size: int, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[Tensor]:
    """Yield memory for batches in turn: for the batches made ahead, the next batch, and the batch in use."""
    return cycle([torch.from_numpy(np.empty((size, *shape), dtype)) for _ in range(AHEAD + 2)])


def resized(file: Path) -> Any:
    return cv2.resize(cv2.imread(str(file)), (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def stream(
    site: Site,
    cache: FrameCache | None,
    *,
    steps: int = FRAMES // BATCH,
    workers: int = 0,
    device: str = "meta",
    augment: bool = True,
) -> Iterator[Any]:
    """Yield training batches, by default of one pass over the frames; without a cache, every frame is decoded."""
    dataset = SampleDataset(samples(site, "train"), height=HEIGHT, width=WIDTH, site=site, cache=cache, cache_bytes=0)
    generator = torch.Generator().manual_seed(0)
    return batches(
        dataset, batch_size=BATCH, iterations=steps, generator=generator, augment=augment, workers=workers,
        device=device,
    )  # fmt: skip


def speed(work: Callable[[], Any]) -> float:
    """Return frames per second of processor time, of the fastest repeat."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in work():
            pass
        seconds.append(time.process_time() - start)
    return FRAMES / min(seconds)


def busy(site: Site, cache: FrameCache | None, workers: int, milliseconds: float) -> float:
    """Return the share of a round in which an emulated GPU computes, of the best repeat."""
    shares, steps = [], STEPS if cache else FRAMES // BATCH
    for _ in range(REPEATS):
        asleep, start = 0.0, time.perf_counter()
        for _ in stream(site, cache, steps=steps, workers=workers):
            began = time.perf_counter()
            time.sleep(BATCH * milliseconds / 1000)
            asleep += time.perf_counter() - began
        shares.append(asleep / (time.perf_counter() - start))
    return max(shares)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
