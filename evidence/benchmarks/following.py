"""Measure the memory of `surgfl segment` over a long video with SurgFed's network.

    python -m evidence.benchmarks.following

The network `cpu` follows two objects through a video of noise (128x128) in its own process and writes all files.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.benchmarks.streams import RATE, resident_bytes, tensors_of
from shared_components.common.progress import Step, listening
from shared_components.core.task import make_task
from shared_components.inference.frames import FrameStream
from shared_components.inference.objects import objects_in, task_of
from shared_components.inference.predict import Predictor, predict_all, shown_frames
from shared_components.inference.results import PredictionFolder
from shared_components.inference.video import H264Video
from shared_components.networks.sam2_video import Sam2Clips

MARKS, SIDE = (100, 500, 1000, 2000, 5000, 10_000), 128
BOXES = ["8,8,72,52", "60,40,60,80"]
TASK = {"frames": 2, "targets_of": "all", "prompts": "first"}
Held = tuple[int, int, int]
"""Number and bytes of the network's remembered tensors, and resident bytes of the process."""


def main() -> None:
    """Print the memory of a process without other work."""
    subprocess.run([sys.executable, "-m", "evidence.benchmarks.following"], check=True)


def segmented(
    network: Sam2Clips, folder: Path, marks: Sequence[int], *, interval: float = 1.0, say: Any = print
) -> list[Held]:
    """Segment a video like the command; print and return the memory after each of these numbers of frames.

    ``interval``: seconds between two remembered frames; the network remembers at most 16.
    """
    stream = FrameStream(_video(folder / "surgery.mp4", max(marks)), height=SIDE, width=SIDE)
    task = make_task("segmentation", TASK | {"interval": interval}, classes=("background", "object"))
    objects = objects_in(network, task, stream, boxes=BOXES)
    shown, task = shown_frames(network, task, stream, objects), task_of(objects, task)
    found: list[Held] = []

    def look(step: Step) -> None:
        if step.what == "frame" and step.done in marks:
            held = list(tensors_of(shown._memory))
            found.append((len(held), sum(tensor.untyped_storage().nbytes() for tensor in held), resident_bytes()))
            tensors, size, resident = found[-1]
            say(f"  {step.done:6,} frames: {tensors} tensors, {size:,} bytes; process {resident / 1e6:.1f} MB")

    results = PredictionFolder(folder / "segmented", stream, task, alone=True)
    with listening(look):
        predict_all(Predictor(shown, task), stream, results)
    return found


def _video(path: Path, frames: int) -> Path:
    video, generator = H264Video(path, rate=Fraction(RATE)), np.random.default_rng(0)
    for number in range(frames):
        video.add(generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8), Fraction(number, RATE))
    video.close()
    return path


def print_memory() -> None:
    """Print the memory of the process and of the network during the video."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"SurgFed: a video at {SIDE}x{SIDE}, two objects, all files written", flush=True)
    network = Sam2Clips(architecture="cpu", size=SIDE).eval()
    with tempfile.TemporaryDirectory() as folder:
        segmented(network, Path(folder), MARKS, say=partial(print, flush=True))


if __name__ == "__main__":
    print_memory()
