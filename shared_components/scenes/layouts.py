"""Layouts of public data sets for rendered sites, and the choice of rendered frames.

Without clips, every rendered frame is labelled. With clips of N frames, the video is rendered more densely: labelled
frames stay as they are, and the N - 1 images before each of them are written without labels, at the real interval.

- `dense`: all frames of a clip have labels, so all rendered frames are one interval apart.
- Layouts that cannot have images without labels get the denser video with all labels.
- Sites without labels: every image is a sample, so all images are one interval apart.
- Layouts of single images get no further images; their clips repeat an image.

EndoVis 2017's black frame around 1280x1024 is left out.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from shared_components.data.files.classes import CLASS_MAPS, MERGES
from shared_components.data.files.images import whole_steps
from shared_components.data.readers.stereomis import DEPTH, LEFT
from shared_components.scenes import writers
from shared_components.scenes.scene import SceneFrame, render_video
from shared_components.scenes.writers import Shot, Writer, depth_of, pair_writer, scene_ids

Array = np.ndarray

_MERGED = np.array(MERGES["cholecseg8k", "cholecseg8k_merged"], np.uint8)


@dataclass(frozen=True)
class Layout:
    video: str  # format of a video's name, from its number
    rate: float  # labelled frames per second
    numbers: float  # frame numbers per second
    target: str  # first label, such as "label" or "depth"
    unlabelled: bool  # whether a labelled video may contain images without labels
    write: Writer
    stills: bool = False  # whether images are not from videos, so that a clip is one image, repeated
    asked: bool = False  # whether a site gets the layout only by name, not when sites cycle through layouts
    dataset: str = ""  # the reader's name; empty: the layout's name
    classes: str = ""  # class map of the site; empty: the reader's default
    things: tuple[str, ...] = ()  # objects on the tissue, from `anatomy.THINGS`
    ids: Callable[[SceneFrame], Array] = attrgetter("parts")  # label of a frame in the reader's classes
    also: tuple[str, ...] = ()  # further labels
    operation: str = ""  # operation with labels, from `operations.OPERATIONS`; empty: none

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target, *self.also)


LAYOUTS: dict[str, Layout] = {
    "endovis2017": Layout("instrument_dataset_{}", 2.0, 2.0, "label", False, writers.write_endovis2017),
    "endovis2018": Layout("seq_{}", 2.0, 2.0, "label", False, writers.write_endovis2018),
    "sar_rarp50": Layout("video_{}", 1.0, 60.0, "label", True, writers.write_sar_rarp50),
    "scared": Layout(
        "dataset_1/keyframe_{}", 2.5, 25.0, "depth", True,
        pair_writer("{:06d}.png", "{}/data/left_undistorted", "{}/data/depthmap_undistorted", depth_of),
    ),
    "sisvse": Layout(
        "manual_syn_{}", 2.0, 2.0, "label", False,
        pair_writer("scene_{:06d}.jpg", "images/{}", "semantic_masks/{}", writers.sisvse_ids),
        stills=True, asked=True,
    ),
    "grasp": Layout(
        "CASE1{:02d}", 1.0, 30.0, "label", True,
        pair_writer("{:09d}.jpg", "frames/{}", "annotations/segmentations/{}", writers.grasp_ids),
        asked=True, ids=lambda frame: np.minimum(frame.parts, 1),
    ),
    "endovis2018_scene": Layout(
        "seq_{}", 2.0, 2.0, "label", False, writers.write_endovis2018, asked=True, dataset="endovis2018",
        classes="scene", things=CLASS_MAPS["scene"][4:], ids=scene_ids,  # the classes after the parts of instruments
    ),
    "autolaparo": Layout(
        "{:03d}", 1.0, 1.0, "label", False, writers.write_autolaparo, asked=True, things=("uterus",),
        ids=writers.hysterectomy_ids,
    ),
    "stereomis": Layout(
        "P{}", 2.5, 25.0, "depth", True, pair_writer("{:06d}.png", "{}/" + LEFT, "{}/" + DEPTH, depth_of), asked=True
    ),
    "cholect45": Layout(
        "VID{:02d}", 1.0, 1.0, "triplets", False, writers.write_cholect45, asked=True, also=("phase",),
        operation="cholecystectomy",
    ),
    "cholecseg8k": Layout(
        "video{:02d}", 1.0, 25.0, "label", False,
        pair_writer("frame_{}_endo.png", "{0}/{0}_00000", "{0}/{0}_00000", writers.watershed_mask, "_watershed_mask"),
        asked=True, classes="cholecseg8k_merged", ids=lambda frame: _MERGED[writers.cholecseg8k_ids(frame)],
        operation="cholecystectomy",
    ),
    "appendix300": Layout(
        "{:03d}", 2.0, 2.0, "grade", True, writers.write_appendix300, asked=True, operation="appendectomy"
    ),
}  # fmt: skip


TARGETS: dict[str, tuple[str, ...]] = {
    "segmentation": ("label",), "depth": ("depth",), "reconstruction": (), "triplets": ("triplets",),
    "phases": ("phase",), "classification": ("grade",),
}  # fmt: skip
"""Labels that a site needs, by its kind of task."""


@dataclass(frozen=True)
class Schedule:
    """Frames of a video to render."""

    rate: float  # rendered frames per second
    numbers: float  # frame numbers per second
    step: int  # frame numbers between two rendered frames
    every: int = 1  # every n-th rendered frame is listed, and labelled if its site has labels
    before: tuple[int, ...] = ()  # distances to rendered frames before a listed frame that belong to its clip
    things: tuple[str, ...] = ()  # objects on the tissue
    operation: str = ""  # operation with labels

    def render(
        self, look: str, seed: int, *, frames: int, height: int, width: int, grade: int = 0
    ) -> Iterator[SceneFrame]:
        """Render a video with this number of listed frames; see `render_video`."""
        return render_video(
            look, seed, frames=frames * self.every, height=height, width=width,
            rate=self.rate, things=self.things, operation=self.operation, grade=grade,
        )  # fmt: skip

    def shots(self, video: Iterator[SceneFrame], *, frames: int, labels: bool) -> Iterator[Shot]:
        """Yield the frames of a rendered video to write; `labels` is whether listed frames keep their labels."""
        listed = {index * self.every for index in range(frames)}
        written = listed | {index - back for index in listed for back in self.before}
        for index, frame in enumerate(video):
            if index in written:
                yield Shot(index * self.step, frame, labels and index in listed)
            if index == max(listed):
                return


def schedule(layout: str, *, clip: int = 1, interval: float = 0.0, dense: bool = False) -> Schedule:
    """Plan the frames of a layout's videos; ValueError if the layout cannot have this clip or interval.

    A clip has ``clip`` frames, ``interval`` seconds apart; 1 for single frames. ``dense``: all frames of a clip are
    listed, instead of only the last.
    """
    style = LAYOUTS[layout]
    plain = Schedule(
        style.rate, style.numbers, round(style.numbers / style.rate), things=style.things, operation=style.operation
    )
    if clip == 1:
        return plain
    if clip < 1 or not 0 < interval < math.inf:
        raise ValueError(f"clips of {clip} frames {interval} s apart are impossible; give both, such as 4 and 0.2")
    if style.stills:
        return plain
    step = whole_steps(interval, style.numbers)
    if not style.unlabelled:
        return plain if step else replace(plain, rate=1 / interval, numbers=1 / interval, step=1)
    if not step:
        rate = f"{layout}'s frames at {style.numbers:g} per second"
        raise ValueError(f"{interval:g} s is not a whole number of {rate}; give another interval")
    if dense:
        return replace(plain, rate=1 / interval, step=step)
    common = math.gcd(plain.step, step)  # listed frames and the frames of their clips are multiples of it
    before = tuple(back * (step // common) for back in range(1, clip))
    return replace(plain, rate=style.numbers / common, step=common, every=plain.step // common, before=before)
