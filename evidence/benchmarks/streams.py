"""Measure FedST's network on streams: frames per second, and memory over a long stream.

Fang et al., Section 4.4.2: the temporal layer reduces 33.01 frames/s to 23.04 (ratio 0.70).

Times are for one thread. Two networks take turns of a few frames: the clip network, which encodes each frame once and
remembers its features, and the same network without temporal layer and text. The fastest frame of each counts. For the
whole command, the fastest video counts. The long stream has its own process.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.core.task import Task, make_task
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import Predictor, Streaming, predict_all, shown_frames
from shared_components.inference.results import PredictionFolder
from shared_components.inference.video import H264Video
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.scenes.scene import render_video

RATE = 25  # frames per second
INTERVAL = 0.2
STRIDE = round(RATE * INTERVAL)
CLASSES = ("background", "shaft", "wrist", "clasper")
SIZES = {(192, 256): 10, (512, 640): 3}  # (height, width) of the job and of the bundle: frames per turn
TURNS = 4
VIDEO, SHOWN = 30, 3  # frames of the long stream, and frames of each turn
LONG, SETTLED, SMALL = 10_000, 500, 32


def main(folder: Path) -> None:
    """Print all parts."""
    torch.set_num_threads(1)
    print(f"a stream, the four frames of a clip {STRIDE} frames apart (aim 0.8)")
    for size, frames in SIZES.items():
        print_rate(f"network alone at {size[0]}x{size[1]}", *alone(size, frames))
    print_rate("surgfl segment, 192x256 of 256x320, all files", *segmenting(folder, (192, 256)))
    print(flush=True)
    subprocess.run([sys.executable, "-m", "evidence.benchmarks.streams"], check=True)


def print_rate(what: str, clips: float, single: float) -> None:
    """Print one line with the seconds per frame of both networks."""
    ratio = f"{1 / clips:.1f} / {1 / single:.1f} frames/s"
    print(f"  {what:48} clips / single frames {ratio} = {single / clips:.2f}")


def networks() -> tuple[PvtFpnClips, PvtFpnClips]:
    """Return the clip network and the single-frame network."""
    torch.manual_seed(0)
    clips = PvtFpnClips(out_channels=len(CLASSES))
    clips.set_indicator(torch.randn(len(clips.indicator)))
    return clips.eval(), PvtFpnClips(out_channels=len(CLASSES), temporal=False, text="none").eval()


def alone(size: tuple[int, int], frames: int) -> tuple[float, float]:
    """Return the lowest seconds per frame of the clip network as a stream, and of the single-frame network."""
    clips, single = networks()
    streaming, image = Streaming(clips, STRIDE), torch.rand(1, 3, *size)
    best = [float("inf")] * 2
    with torch.no_grad():
        for _ in range(3 * STRIDE):  # from here on the history is complete
            streaming(image)
        for _ in range(TURNS):
            for number, network in enumerate((streaming, single)):
                taken = [seconds(partial(network, image)) for _ in range(frames)]
                best[number] = min(best[number], *taken)
    return best[0], best[1]


def segmenting(folder: Path, size: tuple[int, int]) -> tuple[float, float]:
    """Return the lowest seconds per frame of all steps of `surgfl segment`: decode, predict, draw, write."""
    folder.mkdir(parents=True, exist_ok=True)
    video = H264Video(folder / "surgery.mp4", rate=Fraction(RATE))
    for number, frame in enumerate(render_video("narrowband", 0, frames=VIDEO, rate=RATE)):
        video.add(frame.image, Fraction(number, RATE))
    video.close()
    numbers: tuple[dict[str, Any], ...] = ({"frames": 4, "interval": INTERVAL}, {})
    tasks = [make_task("segmentation", given, classes=CLASSES) for given in numbers]
    best = [float("inf")] * 2
    for _ in range(SHOWN):
        for number, (network, task) in enumerate(zip(networks(), tasks, strict=True)):
            best[number] = min(best[number], segment(folder, network, task, size))
    return best[0], best[1]


def segment(folder: Path, network: nn.Module, task: Task, size: tuple[int, int]) -> float:
    """Segment the video like the command; return the seconds per frame."""
    stream = FrameStream(folder / "surgery.mp4", height=size[0], width=size[1])
    with tempfile.TemporaryDirectory(dir=folder) as out:
        results = PredictionFolder(Path(out) / "segmented", stream, task, alone=True)
        predictor = Predictor(shown_frames(network, task, stream), task)
        started = time.perf_counter()
        done = predict_all(predictor, stream, results)
        return (time.perf_counter() - started) / done.count


def print_memory() -> None:
    """Print the growth of the process and of the network's memory in a long stream."""
    clips, _ = networks()
    memory, image = clips.begin_stream(STRIDE), torch.rand(1, 3, SMALL, SMALL)
    sizes = {}
    with torch.no_grad():
        for number in range(1, LONG + 1):
            _, memory = clips.remember(image, memory)
            if number in (SETTLED, LONG):
                tensors = list(tensors_of(memory.frames))
                held = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
                sizes[number] = (len(tensors), held, resident_bytes())
    first, last = sizes[SETTLED], sizes[LONG]
    print(f"a stream of {LONG:,} frames at {SMALL}x{SMALL}, from frame {SETTLED} on")
    print(f"  tensors remembered {first[0]}, then {last[0]}; {first[1]:,} bytes, then {last[1]:,}")
    grown = (last[2] - first[2]) / 2**20
    print(f"  the process grew by {grown:.1f} MB of {last[2] / 2**20:.0f} MB")


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested records and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif getattr(type(value), "__dataclass_fields__", None):
        yield from tensors_of(list(vars(value).values()))


def resident_bytes() -> int:
    """Return the resident memory of the process, including PyTorch."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_memory()
