"""Time `surgfl segment` compared with its first version: `python -m evidence.benchmarks.segment_speed`.

First version: one thread reads, predicts with the unmodified network and writes, frame by frame. PyTorch uses all
cores. Current version: fused decoders, and parallel threads that read, predict and write; also with `--precision bf16`
if the processor supports it. All versions take turns in one run, and the fastest turn of each counts. Masks are
compared. The table has frames per second and processor time.
"""

import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import torch

from evidence.benchmarks.streams import resident_bytes
from evidence.benchmarks.turns import fastest
from shared_components.common import machine
from shared_components.common.progress import Step, listening
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.task import make_task
from shared_components.core.trained_model import Trained, load_trained
from shared_components.core.training_settings import PRECISIONS
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.inference import PACKAGES
from shared_components.inference.backends import on_backend
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import FrameCount, Predictor, predict_all
from shared_components.inference.results import PredictionFolder
from shared_components.inference.video import H264Video
from shared_components.networks.fused_fpn import fuse
from shared_components.networks.tiny import Tiny
from shared_components.scenes.scene import render_video

RATE, TURNS, FRAMES = 25, 2, 6
CASES = {(192, 256): (256, 320, 24), (512, 640): (512, 640, 8)}  # network's size: video's size, frames
MARKS = (500, 1000, 2000, 5000, 10_000)
Way = Callable[[Predictor, FrameStream, PredictionFolder], FrameCount]


def main() -> None:
    """Print a table for each size of the network."""
    print(f"surgfl segment, all files written; commit {commit()}, {hardware()}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        print_memory(Path(folder))
    model = load_trained(shipped_weights("pvt_fpn"), bundle="pvt_fpn")
    for size, video in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), model, size, video)


def compare(folder: Path, model: Trained, size: tuple[int, int], video: tuple[int, int, int]) -> None:
    """Segment a video with all versions; print frames per second, processor time and agreement of masks."""
    stream = FrameStream(_video(folder / "surgery.mp4", *video), height=size[0], width=size[1])
    ways: dict[str, tuple[Predictor, Way]] = {"before": (Predictor(model.network, model.task), one_after_the_other)}
    fused, where = fuse(copy.deepcopy(model.network)), torch.device("cpu")
    precisions = PRECISIONS if machine.fast_bf16(where) else ("float32",)
    for backend, precision in product(("torch", "openvino"), precisions):
        if all(map(find_spec, PACKAGES[backend])):
            fast, _ = on_backend(fused, stream, backend=backend, precision=precision, where=where)
            ways[f"{backend}, {precision}"] = (Predictor(fast, model.task, precision=precision), predict_all)
    best = {name: (float("inf"), float("inf")) for name in ways}
    for _ in range(TURNS):
        for name, (predictor, way) in ways.items():
            out = PredictionFolder(folder / name, stream, model.task, alone=True)
            clock, spent = time.perf_counter(), time.process_time()
            count = way(predictor, stream, out).count
            taken = (time.perf_counter() - clock) / count, (time.process_time() - spent) / count
            best[name] = (min(best[name][0], taken[0]), min(best[name][1], taken[1]))
    print(f"{size[0]}x{size[1]}, {count} frames of {video[0]}x{video[1]}; {alone(ways, size)}")
    for name, (seconds, processor) in best.items():
        of = best["before"]
        ratios = f"{of[0] / seconds:.2f} times, in processor time {of[1] / processor:.2f}"
        print(
            f"  {name:17} {1 / seconds:6.2f} frames/s, {1000 * processor:6.1f} ms of processor time a frame; {ratios}; "
            f"masks agree on {agreement(folder / 'before', folder / name):.3%}",
            flush=True,
        )


def alone(ways: Mapping[str, tuple[Predictor, Way]], size: tuple[int, int]) -> str:
    """Print the processor time of each prediction: the fastest of some frames, in turns."""
    image = torch.rand(1, 3, *size)
    best = fastest({name: partial(predictor, image, size) for name, (predictor, _way) in ways.items()}, FRAMES)
    took = [f"{name} {1000 * one:.1f} ms ({best['before'] / one:.2f} times)" for name, one in best.items()]
    return f"a prediction alone, in processor time: {', '.join(took)}"


def print_memory(folder: Path) -> None:
    """Segment a long, small video with a small network, and print the growth of the process."""
    stream = FrameStream(_video(folder / "surgery.mp4", 64, 96, max(MARKS)), height=32, width=32)
    task, held = make_task("segmentation", classes=("background", "a", "b", "c")), {}

    def look(step: Step) -> None:
        if step.done in MARKS:
            held[step.done] = resident_bytes()

    with listening(look):
        predict_all(Predictor(Tiny().eval(), task), stream, PredictionFolder(folder / "out", stream, task, alone=True))
    grown = ", ".join(f"{(held[mark] - held[MARKS[0]]) / 1e6:.1f} MB until frame {mark:,}" for mark in MARKS[1:])
    print(f"from frame {MARKS[0]} on the process grows by {grown}, of {held[MARKS[-1]] / 1e6:.0f} MB", flush=True)


def one_after_the_other(predictor: Predictor, stream: FrameStream, folder: PredictionFolder) -> FrameCount:
    """Segment with the first version: one thread, one frame in memory."""
    frames = FrameCount(stream.total)
    with folder:
        for item in stream:
            shot = item["shot"]
            _, answer = predictor(item["image"], shot.image.shape[:2], sequence=shot.sequence)
            folder.add(shot, answer)
            frames.step()
    return frames


def agreement(first: Path, second: Path) -> float:
    """Return the share of pixels with equal classes in the masks of two results."""
    paths = sorted((first / "masks").iterdir())
    masks = [[cv2.imread(str(folder / "masks" / path.name), 0) for path in paths] for folder in (first, second)]
    return float(np.mean(np.stack(masks[0]) == np.stack(masks[1])))


def _video(path: Path, height: int, width: int, frames: int) -> Path:
    video = H264Video(path, rate=Fraction(RATE))
    scenes = [scene.image for scene in render_video("narrowband", 0, frames=24, height=height, width=width, rate=RATE)]
    for number in range(frames):
        video.add(scenes[number % len(scenes)], Fraction(number, RATE))
    video.close()
    return path


if __name__ == "__main__":
    main()
