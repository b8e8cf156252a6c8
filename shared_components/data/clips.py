"""Clips: which images show a frame and what came before it.

A clip is T images at a real interval, the last of them the current frame. A frame before the first one of a video, or
of the stretch that a split has of it, is replaced, so that no clip shows another split: by that first frame, or by the
current one (`PADDINGS`). A site may refuse to show history (`history: false`): then a clip is the current frame T
times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from shared_components.data.files import DataError, frame_number, spacing, whole_steps, with_number
from shared_components.data.site import Site

PADDINGS = ("first", "current")
"""What stands for a frame before a video's beginning: the video's first frame, which keeps the order of time, or the
current frame, as in FedST (Section 4.1.3)."""
Clip = Callable[[int, Path], tuple[Path, ...]]
"""(number, image) of a frame -> the T images of its clip, oldest first."""


def clip_maker(
    site: Site, video: str, *, frames: int, interval: float, padding: str = "first", begin: int | None = None
) -> Clip:
    """Return what lists the images of a video's clips.

    An image that should be between those that are there is listed under the name it should have, or, where images are
    not named by their numbers, as what it is: (0.2 s before 000000068.jpg).

    Args:
        frames: T; `interval`: seconds between them.
        padding: one of `PADDINGS`.
        begin: number of the first frame that a clip may show; None: the video's first.

    Raises:
        DataError: the video cannot give frames this far apart.
    """
    if frames == 1 or not site.history:
        return lambda number, image: (image,) * frames
    images = site.source.reader.images(site.root, video)
    step = _step(site, video, images, frames, interval)
    start = min(images, default=0) if begin is None else begin

    def clip(number: int, image: Path) -> tuple[Path, ...]:
        first = min(start, number)
        instead = number if padding == "current" else first
        past = [number - back * step for back in range(frames - 1, 0, -1)]
        wanted = [n if n >= first else instead for n in past]
        return (*(images.get(n) or _missing(image, number, n, interval / step) for n in wanted), image)

    return clip


def _missing(image: Path, number: int, wanted: int, seconds: float) -> Path:
    """Name the image of a number that is not there, by one that is; `seconds` lie between two numbers."""
    if frame_number(image) == number:
        return with_number(image, wanted)
    return image.with_name(f"({(number - wanted) * seconds:g} s before {image.name})")


def _step(site: Site, video: str, images: Collection[int], frames: int, interval: float) -> int:
    """Return the distance in frame numbers that the interval is."""
    repeat = "or write 'history: false' in it, which repeats the frame"
    asked = f"clips of {frames} frames {interval:g} s apart"
    if site.rate is None:
        what = f"{asked} are asked for, but the rate of {site.dataset}'s frame numbers is not known"
        raise DataError(site.path, what, f"write 'rate' (frame numbers per second), {repeat}")
    step, grid = whole_steps(interval, site.rate), max(spacing(images), 1)
    if step < 1 or step % grid:
        every = grid / site.rate
        what = (
            f"{asked} are asked for, but {video} of {site.dataset} has an image every {every:g} s "
            f"(every {grid} numbers, {site.rate:g} numbers a second)"
        )
        raise DataError(site.path, what, f"ask for a multiple of {every:g} s, unpack more of its images, {repeat}")
    return step
