"""What reading by number, cropping and flipping frames of a video costs beside decoding it (aim: 0.6 of its frames/s).

`python -m evidence.benchmarks.video_crops [VIDEO]`; without one, 300 frames of noise at 854x480 in H.264, 25 a second.
Both sides decode the same frames in order by their numbers, in one thread, thrice; the least processor time counts.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import cv2
import numpy as np
import torch

from shared_components.data.files.video import frame_count, opened, read_frame, shown_stream
from shared_components.data.native_crops import crop_native, sample_native_crop

SIZE, FRAMES, REPEATS = 224, 300, 3


def main(video: Path) -> None:
    """Print frames per second of both."""
    cv2.setNumThreads(1)
    numbers = range(min(frame_count(video), FRAMES))
    plain = best(lambda: decode(video, len(numbers)), len(numbers))
    cropped = best(lambda: crop(video, numbers), len(numbers))
    print(f"decoded {plain:.0f}/s; by number, cropped and flipped {cropped:.0f}/s = {cropped / plain:.2f} (aim 0.6)")


def best(work: Callable[[], None], frames: int) -> float:
    """Return frames per second of processor time, of the fastest of the repeats."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return frames / min(seconds)


def decode(video: Path, count: int) -> None:
    """Decode to RGB from the start with PyAV, without our reader."""
    with opened(video) as container:
        for number, frame in enumerate(container.decode(shown_stream(container, video))):
            if number == count:
                return
            frame.to_ndarray(format="rgb24")


def crop(video: Path, numbers: range) -> None:
    """Read by number, crop and flip."""
    generator = torch.Generator().manual_seed(0)
    for number in numbers:
        crop_native(read_frame(video, number), sample_native_crop(generator, 0.6), SIZE, SIZE)


def write_video(path: Path) -> Path:
    """Encode a picture of smooth noise that moves."""
    noise = np.random.default_rng(0).integers(0, 256, (30, 54, 3), dtype=np.uint8)
    picture = cv2.resize(noise, (1800, 480), interpolation=cv2.INTER_CUBIC)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 854, 480, "yuv420p"
        for number in range(FRAMES):
            shown = np.ascontiguousarray(picture[:, 3 * number : 3 * number + 854])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        container.mux(stream.encode())
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if sys.argv[1:] else write_video(Path(folder) / "noise.mp4"))
