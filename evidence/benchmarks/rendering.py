"""Measure rendered frames per second of processor time at 320x256: named looks and random families.

python -m evidence.benchmarks.rendering
"""

import time

import cv2

from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.looks import SITE_LOOKS
from shared_components.scenes.scene import render_video

VIDEOS, FRAMES = 10, 24


def frames_per_second(looks: list[str]) -> float:
    """Render one video of each look and count."""
    began = time.process_time()
    count = sum(1 for n, look in enumerate(looks) for _ in render_video(look, n, frames=FRAMES))
    return count / (time.process_time() - began)


def main() -> None:
    """Print both figures and their ratio."""
    cv2.setNumThreads(1)
    named = frames_per_second([SITE_LOOKS[n % len(SITE_LOOKS)] for n in range(VIDEOS)])
    drawn = {family: frames_per_second([f"{family}-{n}" for n in range(VIDEOS)]) for family in FAMILIES}
    random = drawn["random"]
    print(f"rendering 320x256 on one core, {VIDEOS} videos of {FRAMES} frames, painting included (aim 60 frames/s):")
    print(f"  named looks {named:.0f} frames/s, random looks {random:.0f} frames/s, ratio {random / named:.2f}")
    print("  " + ", ".join(f"{family} {found:.0f}" for family, found in drawn.items()) + " frames/s")


if __name__ == "__main__":
    main()
