"""Which frames of a video are rendered, written and labelled.

Without clips every rendered frame is labelled. With clips of N frames the same video is rendered more densely, so
that each labelled frame is as before, and the N - 1 images before it are written without labels, at the real
interval. A layout that cannot hold images without labels gets the denser video with all of its labels. Where no frame
has a label, every image is a sample: then they are all one interval apart. A layout of single images gets no others:
its clips repeat them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shared_components.data.files import whole_steps
from shared_components.data.synthetic.layouts import LAYOUTS, Layout, Shot
from shared_components.data.synthetic.scene import SceneFrame, render_video

TARGETS: dict[str, tuple[str, ...]] = {"segmentation": ("label",), "depth": ("depth",), "reconstruction": ()}
"""What a site needs beside its images, by its kind of task."""


@dataclass(frozen=True)
class Schedule:
    """When a video's frames are rendered.

    Attributes:
        rate: rendered frames per second; `numbers`: frame numbers per second; `step`: numbers between two
            rendered frames.
        every: each n-th rendered frame is listed (labelled, if its site has labels).
        before: how many rendered frames before a listed one its clip shows an image.
    """

    rate: float
    numbers: float
    step: int
    every: int = 1
    before: tuple[int, ...] = ()

    def render(self, look: str, seed: int, *, frames: int, height: int, width: int) -> Iterator[SceneFrame]:
        """Render a video with this many listed frames; as `render_video`."""
        size = {"height": height, "width": width}
        return render_video(look, seed, frames=frames * self.every, rate=self.rate, **size)

    def shots(self, video: Iterator[SceneFrame], *, frames: int, labels: bool) -> Iterator[Shot]:
        """Yield the frames of a rendered video that are written; `labels` says if the listed ones keep theirs."""
        listed = {index * self.every for index in range(frames)}
        shown = {index - back for index in listed for back in self.before}
        for index, frame in enumerate(video):
            if index in listed or index in shown:
                yield Shot(index * self.step, frame, labels and index in listed)
            if index == max(listed):
                return


def schedule(layout: str, *, clip: int = 1, interval: float = 0.0, labels: bool = True) -> Schedule:
    """Plan the frames of a layout's videos.

    Args:
        clip: frames of the clips that the site is to give; 1: single frames.
        interval: seconds between the frames of a clip.
        labels: whether listed frames have labels.

    Raises:
        ValueError: the clip or its interval cannot be.
    """
    style = LAYOUTS[layout]
    plain = Schedule(style.rate, style.numbers, round(style.numbers / style.rate))
    if clip == 1:
        return plain
    if clip < 1 or not 0 < interval < math.inf:
        raise ValueError(f"clips of {clip} frames {interval} s apart cannot be; give both, such as 4 and 0.2")
    if style.stills:
        return plain
    step = whole_steps(interval, style.numbers)
    if not style.unlabelled:
        return plain if step else Schedule(1 / interval, 1 / interval, 1)
    if not step:
        raise ValueError(
            f"frames {interval:g} s apart are no whole number of {layout}'s frames, of which a second has "
            f"{style.numbers:g}; give another interval"
        )
    return _denser(style, plain.step, step, clip) if labels else Schedule(1 / interval, style.numbers, step)


def _denser(style: Layout, listed: int, step: int, clip: int) -> Schedule:
    """Render so densely that listed frames and those of their clips fall on rendered ones; all in numbers."""
    common = math.gcd(listed, step)
    before = tuple(back * (step // common) for back in range(1, clip))
    return Schedule(style.numbers / common, style.numbers, common, listed // common, before)
