"""Write a video of synthetic frames in the on-disk layout of a public data set, and choose its frames.

Each layout is one function; LAYOUTS lists them. Images and masks are lossless PNG of the rendered size
(EndoVis 2017's black frame around 1280x1024 is left out), the images of Sisvse and GraSP fine JPEG as theirs.

Without clips every rendered frame is labelled. With clips of N frames the same video is rendered more densely, so
that each labelled frame is as before, and the N - 1 images before it are written without labels, at the real
interval. Where every frame of a clip is to have labels (`dense`), all rendered frames do, one interval apart. A layout
that cannot hold images without labels gets the denser video with all of its labels. Where no frame has a label, every
image is a sample: then they are all one interval apart. A layout of single images gets no others: its clips repeat
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from shared_components.data.classes import CLASS_MAPS, MERGES
from shared_components.data.files import depth_values, whole_steps
from shared_components.data.readers.cholecseg8k import VALUES
from shared_components.data.readers.stereomis import DEPTH, LEFT
from shared_components.scenes import toolbox
from shared_components.scenes.label_layouts import write_appendix300, write_cholect45
from shared_components.scenes.scene import SceneFrame, render_video
from shared_components.scenes.shots import Shot, Written, write_pairs, write_png

Array = np.ndarray

# id of background, shaft, wrist, clasper (our 0..3) in each layout
_ENDOVIS2017_IDS = np.array([0, 10, 20, 30], np.uint8)
_SAR_RARP50_IDS = np.array([0, 3, 2, 1], np.uint8)
_ENDOVIS2017_PARTS = {"Shaft": 10, "Wrist": 20, "Claspers": 30, "Other": 40}
_ENDOVIS2018_CLASSES = (
    ("background-tissue", (0, 0, 0)), ("instrument-shaft", (0, 255, 0)), ("instrument-clasper", (0, 255, 255)),
    ("instrument-wrist", (125, 255, 12)), ("kidney-parenchyma", (255, 55, 0)), ("covered-kidney", (24, 55, 125)),
    ("thread", (187, 155, 25)), ("clamps", (0, 255, 125)), ("suturing-needle", (255, 255, 125)),
    ("suction-instrument", (123, 15, 175)), ("small-intestine", (124, 155, 5)), ("ultrasound-probe", (12, 255, 141)),
)  # fmt: skip
# the body, wrist and head of Cadiere forceps, whatever the instrument
_SISVSE_IDS = np.array([0, 8, 7, 6], np.uint8)
# in the order in which the data set lists them: which of its ids 1 to 7 is which kind is not known
_GRASP_INSTRUMENTS = (
    "Bipolar_Forceps", "Prograsp_Forceps", "Large_Needle_Driver", "Monopolar_Curved_Scissors", "Suction",
    "Clip_Applier", "Grasper",
)  # fmt: skip
_SCENE = CLASS_MAPS["scene"]
_SCENE_THINGS = _SCENE[4:]  # after the parts of instruments
_SCENE_PARTS = np.array([0, *(_SCENE.index(part) for part in CLASS_MAPS["parts"][1:])], np.uint8)
# AutoLaparo's tools are two graspers, a sealer and a hook: which of its numbers a rendered kind has
_TOOL_NUMBERS = {
    toolbox.PROGRASP: 1, toolbox.GRASPER: 1, toolbox.NEEDLE: 2, toolbox.CLIPS: 2, toolbox.STAPLER: 2,
    toolbox.MARYLAND: 3, toolbox.SCISSORS: 3, toolbox.SHEARS: 4, toolbox.HOOK: 4, toolbox.SUCTION: 4,
}  # fmt: skip
# liver, gallbladder, fat, gut, duct, artery (which CholecSeg8k has no class for, but a vein) and fluid of an operation
_CHOLECSEG8K = np.array([0, *map(CLASS_MAPS["cholecseg8k"].index, (
    "liver", "gallbladder", "fat", "gastrointestinal tract", "cystic duct", "hepatic vein", "blood",
))], np.uint8)  # fmt: skip
_CHOLECSEG8K_TOOLS = {kind: CLASS_MAPS["cholecseg8k"].index(kind) for kind in ("L-hook", "grasper")}
_CHOLECSEG8K_GREYS = np.array(sorted(VALUES, key=VALUES.__getitem__), np.uint8)
_MERGED = np.array(MERGES["cholecseg8k", "cholecseg8k_merged"], np.uint8)
_MOST_OF_A_CLIP = 1000  # frames, by three digits
_GESTURE_STEP = 6  # frame numbers between two lines of SAR-RARP50's actions: 10 Hz of 60 Hz


@dataclass(frozen=True)
class Layout:
    """A public data set's layout.

    Attributes:
        video: name of video number N as a format.
        rate: labelled frames per second; `numbers`: frame numbers per second.
        target: what it holds beside images, such as "label" or "depth"; `also`: what it holds besides.
        unlabelled: whether a labelled video may hold images without labels.
        write: `(root, video name, shots) -> iterator of (frame, file stem)`; writes each frame as it passes.
        stills: whether its images are of no video, so that a clip is one of them, repeated.
        asked: whether a site gets it only where it is asked for by name, and never in turn.
        dataset: the reader's name; empty: the layout's own.
        classes: name of the class map that a site has, where it is not the reader's usual one.
        things: what lies on the tissue, see `anatomy.THINGS`.
        ids: a frame's label in the site's classes, as the reader gives it.
        operation: what is operated, see `operations.OPERATIONS`; empty: nothing that has labels of its own.
    """

    video: str
    rate: float
    numbers: float
    target: str
    unlabelled: bool
    write: Callable[[Path, str, Iterable[Shot]], Written]
    stills: bool = False
    asked: bool = False
    dataset: str = ""
    classes: str = ""
    things: tuple[str, ...] = ()
    ids: Callable[[SceneFrame], Array] = attrgetter("parts")
    also: tuple[str, ...] = ()
    operation: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """All that it holds beside images."""
        return (self.target, *self.also)


def _write_endovis2017(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """instrument_dataset_N/left_frames/frameNNN.png and ground_truth/<Instrument>_labels/frameNNN.png."""
    truth = root / video / "ground_truth"
    stems: list[str] = []
    seen: dict[str, set[str]] = {}
    blank = np.zeros((1, 1), np.uint8)
    for shot in shots:
        frame, stem = shot.frame, f"frame{shot.number:03d}"
        write_png(root / video / "left_frames" / f"{stem}.png", frame.image)
        if shot.labelled:
            ids = _ENDOVIS2017_IDS[frame.parts]
            for number, tool in enumerate(frame.tools, start=1):
                mask = np.where(frame.instances == number, ids, 0)
                write_png(truth / f"{tool}_labels" / f"{stem}.png", mask)
                seen.setdefault(tool, set()).add(stem)
            stems.append(stem)
            blank = np.zeros_like(frame.parts)
        yield frame, stem
    if stems:
        (root / "parts_mapping.json").write_text(json.dumps(_ENDOVIS2017_PARTS, indent=2) + "\n", "utf-8")
    # as in the challenge, every instrument's folder has a mask for every frame
    for tool in sorted(seen) or ["Left_Large_Needle_Driver"]:
        for stem in stems:
            if stem not in seen.get(tool, ()):
                write_png(truth / f"{tool}_labels" / f"{stem}.png", blank)


def scene_ids(frame: SceneFrame) -> Array:
    """Return a frame's label (H, W) in the classes `scene`; its things are those from the kidney on."""
    things = np.where(frame.things > 0, frame.things + np.uint8(len(_SCENE_PARTS) - 1), np.uint8(0))
    return np.where(frame.parts > 0, _SCENE_PARTS[frame.parts], things)


def hysterectomy_ids(frame: SceneFrame) -> Array:
    """Return a frame's label (H, W) in the classes `hysterectomy`; its one thing is the uterus.

    A tool that AutoLaparo has nothing like, such as a snare, is a grasper.
    """
    numbers = [next((n for kind, n in _TOOL_NUMBERS.items() if tool.endswith(kind)), 1) for tool in frame.tools]
    manipulators = np.array([0, *(2 * number - 1 for number in numbers)], np.uint8)[frame.instances]
    uterus = np.where(frame.things > 0, np.uint8(9), np.uint8(0))
    return np.where(frame.parts > 0, manipulators + (frame.parts == 1), uterus).astype(np.uint8)


def _write_endovis2018(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """seq_N/left_frames/frameNNN.png and seq_N/labels/frameNNN.png, colour-coded as labels.json says."""
    colours = np.array([colour for _, colour in _ENDOVIS2018_CLASSES], np.uint8)
    images, labels = root / video / "left_frames", root / video / "labels"
    yield from write_pairs(shots, "frame{:03d}.png", images, labels, lambda frame: colours[scene_ids(frame)])
    if labels.is_dir():
        classes = [{"name": n, "color": list(c), "classid": i} for i, (n, c) in enumerate(_ENDOVIS2018_CLASSES)]
        (root / "labels.json").write_text(json.dumps(classes, indent=2) + "\n", "utf-8")


def _write_sar_rarp50(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """video_N/{rgb,segmentation}/%09d.png, labelled at 1 Hz, and video_N/action_discrete.txt at 10 Hz."""
    lines = []
    for shot in shots:
        stem = f"{shot.number:09d}"
        write_png(root / video / "rgb" / f"{stem}.png", shot.frame.image)
        if shot.labelled:
            write_png(root / video / "segmentation" / f"{stem}.png", _SAR_RARP50_IDS[shot.frame.parts])
            second = range(shot.number, shot.number + 60, _GESTURE_STEP)
            lines += [f"{number},{shot.frame.gesture}\n" for number in second]
        yield shot.frame, stem
    if lines:
        (root / video / "action_discrete.txt").write_text("".join(lines), "utf-8")


def _write_autolaparo(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """AutoLaparo_Task3/{imgs,masks}/<clip><frame>, three digits each."""
    base = root / "AutoLaparo_Task3"

    def limited() -> Iterator[Shot]:
        for shot in shots:
            if shot.number >= _MOST_OF_A_CLIP:
                raise ValueError(
                    f"a clip of autolaparo has at most {_MOST_OF_A_CLIP} frames; ask for fewer, or longer apart"
                )
            yield shot

    return write_pairs(
        limited(), video + "{:03d}.jpg", base / "imgs", base / "masks", lambda frame: 20 * hysterectomy_ids(frame)
    )


def cholecseg8k_ids(frame: SceneFrame) -> Array:
    """Return a cholecystectomy's label (H, W) in the classes `cholecseg8k`; all tools but the hook are graspers."""
    kinds = ("L-hook" if tool.endswith(toolbox.HOOK) else "grasper" for tool in frame.tools)
    tools = np.array([0, *(_CHOLECSEG8K_TOOLS[kind] for kind in kinds)], np.uint8)[frame.instances]
    return np.where(frame.parts > 0, tools, _CHOLECSEG8K[frame.things])


def _write_cholecseg8k(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """videoNN/videoNN_00000/frame_<n>_endo.png and frame_<n>_endo_watershed_mask.png, 25 numbers a second."""
    folder = root / video / f"{video}_00000"
    for shot in shots:
        stem = f"frame_{shot.number}_endo"
        write_png(folder / f"{stem}.png", shot.frame.image)
        if shot.labelled:
            write_png(folder / f"{stem}_watershed_mask.png", _CHOLECSEG8K_GREYS[cholecseg8k_ids(shot.frame)])
        yield shot.frame, stem


def _grasp_mask(frame: SceneFrame) -> Array:
    """Return (H, W) ids of the kinds of instruments; one that GraSP lacks is a laparoscopic grasper."""
    last = len(_GRASP_INSTRUMENTS)
    kinds = [
        next((number for number, kind in enumerate(_GRASP_INSTRUMENTS, start=1) if kind in tool), last)
        for tool in frame.tools
    ]
    return np.array([0, *kinds], np.uint8)[frame.instances]


def _pairs(
    stem: str, images: str, targets: str, target: Callable[[SceneFrame], Array]
) -> Callable[[Path, str, Iterable[Shot]], Written]:
    """Return the writer of images and targets in two folders, with the video's name for {}; see `write_pairs`."""

    def write(root: Path, video: str, shots: Iterable[Shot]) -> Written:
        return write_pairs(shots, stem, root / images.format(video), root / targets.format(video), target)

    return write


def _depth(frame: SceneFrame) -> Array:
    return depth_values(frame.depth)


LAYOUTS: dict[str, Layout] = {
    "endovis2017": Layout("instrument_dataset_{}", 2.0, 2.0, "label", False, _write_endovis2017),
    "endovis2018": Layout("seq_{}", 2.0, 2.0, "label", False, _write_endovis2018),
    "sar_rarp50": Layout("video_{}", 1.0, 60.0, "label", True, _write_sar_rarp50),
    "scared": Layout(
        "dataset_1/keyframe_{}", 2.5, 25.0, "depth", True,
        _pairs("{:06d}.png", "{}/data/left_undistorted", "{}/data/depthmap_undistorted", _depth),
    ),
    "sisvse": Layout(
        "manual_syn_{}", 2.0, 2.0, "label", False,
        _pairs("scene_{:06d}.jpg", "images/{}", "semantic_masks/{}", lambda frame: _SISVSE_IDS[frame.parts]),
        stills=True, asked=True,
    ),
    "grasp": Layout(
        "CASE1{:02d}", 1.0, 30.0, "label", True,
        _pairs("{:09d}.jpg", "frames/{}", "annotations/segmentations/{}", _grasp_mask),
        asked=True, ids=lambda frame: np.minimum(frame.parts, 1),
    ),
    "endovis2018_scene": Layout(
        "seq_{}", 2.0, 2.0, "label", False, _write_endovis2018, asked=True, dataset="endovis2018", classes="scene",
        things=_SCENE_THINGS, ids=scene_ids,
    ),
    "autolaparo": Layout(
        "{:03d}", 1.0, 1.0, "label", False, _write_autolaparo, asked=True, things=("uterus",), ids=hysterectomy_ids
    ),
    "stereomis": Layout(
        "P{}", 2.5, 25.0, "depth", True, _pairs("{:06d}.png", "{}/" + LEFT, "{}/" + DEPTH, _depth), asked=True
    ),
    "cholect45": Layout(
        "VID{:02d}", 1.0, 1.0, "triplets", False, write_cholect45, asked=True, also=("phase",),
        operation="cholecystectomy",
    ),
    "cholecseg8k": Layout(
        "video{:02d}", 1.0, 25.0, "label", False, _write_cholecseg8k, asked=True, classes="cholecseg8k_merged",
        ids=lambda frame: _MERGED[cholecseg8k_ids(frame)], operation="cholecystectomy",
    ),
    "appendix300": Layout(
        "{:03d}", 2.0, 2.0, "grade", True, write_appendix300, asked=True, operation="appendectomy"
    ),
}  # fmt: skip


TARGETS: dict[str, tuple[str, ...]] = {
    "segmentation": ("label",), "depth": ("depth",), "reconstruction": (), "triplets": ("triplets",),
    "phases": ("phase",), "classification": ("grade",),
}  # fmt: skip
"""What a site needs beside its images, by its kind of task."""


@dataclass(frozen=True)
class Schedule:
    """When a video's frames are rendered.

    Attributes:
        rate: rendered frames per second; `numbers`: frame numbers per second; `step`: numbers between two
            rendered frames.
        every: each n-th rendered frame is listed (labelled, if its site has labels).
        before: how many rendered frames before a listed one its clip shows an image.
        things: what lies on the tissue.
        operation: what is operated.
    """

    rate: float
    numbers: float
    step: int
    every: int = 1
    before: tuple[int, ...] = ()
    things: tuple[str, ...] = ()
    operation: str = ""

    def render(
        self, look: str, seed: int, *, frames: int, height: int, width: int, grade: int = 0
    ) -> Iterator[SceneFrame]:
        """Render a video with this many listed frames; as `render_video`."""
        return render_video(
            look, seed, frames=frames * self.every, height=height, width=width,
            rate=self.rate, things=self.things, operation=self.operation, grade=grade,
        )  # fmt: skip

    def shots(self, video: Iterator[SceneFrame], *, frames: int, labels: bool) -> Iterator[Shot]:
        """Yield the frames of a rendered video that are written; `labels` says if the listed ones keep theirs."""
        listed = {index * self.every for index in range(frames)}
        shown = {index - back for index in listed for back in self.before}
        for index, frame in enumerate(video):
            if index in listed or index in shown:
                yield Shot(index * self.step, frame, labels and index in listed)
            if index == max(listed):
                return


def schedule(layout: str, *, clip: int = 1, interval: float = 0.0, dense: bool = False) -> Schedule:
    """Plan the frames of a layout's videos.

    Args:
        clip: frames of the clips that the site is to give; 1: single frames.
        interval: seconds between the frames of a clip.
        dense: whether all frames of a clip are listed, and not the last one alone.

    Raises:
        ValueError: the clip or its interval cannot be.
    """
    style = LAYOUTS[layout]
    return replace(_schedule(layout, clip, interval, dense), things=style.things, operation=style.operation)


def _schedule(layout: str, clip: int, interval: float, dense: bool) -> Schedule:
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
    return Schedule(1 / interval, style.numbers, step) if dense else _denser(style, plain.step, step, clip)


def _denser(style: Layout, listed: int, step: int, clip: int) -> Schedule:
    """Render so densely that listed frames and those of their clips fall on rendered ones; all in numbers."""
    common = math.gcd(listed, step)
    before = tuple(back * (step // common) for back in range(1, clip))
    return Schedule(style.numbers / common, style.numbers, common, listed // common, before)
