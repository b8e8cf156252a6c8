"""Frames a second of the scene renderer at 320x256 on one core: named looks and random ones, painting included.

python -m evidence.benchmarks.rendering
"""

from __future__ import annotations

import time

import cv2

from shared_components.data.synthetic.looks import SITE_LOOKS
from shared_components.data.synthetic.scene import render_video

VIDEOS, FRAMES = 10, 24


def frames_per_second(looks: list[str]) -> float:
    """Render one video of each look and count."""
    began = time.perf_counter()
    count = sum(1 for n, look in enumerate(looks) for _ in render_video(look, n, frames=FRAMES))
    return count / (time.perf_counter() - began)


def main() -> None:
    """Print both figures and their ratio."""
    cv2.setNumThreads(1)
    named = frames_per_second([SITE_LOOKS[n % len(SITE_LOOKS)] for n in range(VIDEOS)])
    random = frames_per_second([f"random-{n}" for n in range(VIDEOS)])
    print(f"rendering 320x256 on one core, {VIDEOS} videos of {FRAMES} frames, painting included (aim 60 frames/s):")
    print(f"  named looks {named:.0f} frames/s, random looks {random:.0f} frames/s, ratio {random / named:.2f}")


if __name__ == "__main__":
    main()
