"""How fast frames reach the training, and how long a GPU waits for them.

python -m evidence.benchmarks.input_pipeline

Frames of 1280x1024 (PNG, with PNG masks) become batches of 8 at 512x640. Speed is in frames per second of processor
time, so that it holds for one core. The GPU is emulated: a step sleeps for a time per frame, and conversion to floats,
which a GPU does itself, costs nothing (PyTorch's device `meta`). "Busy" is the share of sleep in a round's time.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import torch

from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.frame_cache import FrameCache
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
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
    for name, work in {
        "OpenCV: decode and resize images": lambda: [resized(file) for file in files],
        "images, masks and augmentation, decoded each time": lambda: stream(site, None, device="cpu"),
        "the same, converted to floats on the device": lambda: stream(site, None),
        "from the frame cache": lambda: stream(site, cache),
        "from the frame cache, not augmented": lambda: stream(site, cache, augment=False),
    }.items():
        print(f"| {name} | {speed(work):.1f} |", flush=True)
    print("\n| emulated GPU: busy | 8 ms a frame | 1 ms a frame |\n|---|---:|---:|")
    for name, chosen in (("decoded each time", None), ("from the frame cache", cache)):
        for workers in (0, 1, 4):
            shares = [busy(site, chosen, workers, milliseconds) for milliseconds in (8, 1)]
            print(f"| {name}, {workers} workers | {' | '.join(f'{share:.0%}' for share in shares)} |", flush=True)


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
        start = time.perf_counter()
        for _ in stream(site, cache, steps=steps, workers=workers):
            time.sleep(BATCH * milliseconds / 1000)
        shares.append(steps * BATCH * milliseconds / 1000 / (time.perf_counter() - start))
    return max(shares)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
