"""List and read the samples of a site: images and their targets by name.

A sample is a clip of T images or a whole video. A clip ends in the current frame; its frames are a fixed interval
apart. Padding (`Padding`) replaces frames before the start of the video, or of its range in the split, so no clip
shows frames of another split. With ``history: false`` in site.yaml, a clip repeats the current frame. If all frames of
a clip have targets (`TargetsOf`), a clip contains only labelled frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from shared_components.common.arguments import one_of
from shared_components.data.files.classes import merge_classes
from shared_components.data.files.images import (
    DataError,
    Size,
    frame_number,
    refuse_other_size,
    replace_frame_number,
    spacing,
    turn_of,
    turned,
    whole_steps,
)
from shared_components.data.readers import Listing, Targets
from shared_components.data.site import Site, SiteError, Source, VideoRange, source_names, targets_of
from shared_components.data.targets import is_map, over_time, refuse_other_form

Padding = Literal["first", "current"]
"""Replacement for frames before the start of a video: the first frame, or the current frame (FedST, Section 4.1.3)."""
WHOLE = ("video", "sequence")
TargetsOf = Literal["last", "all", "video", "sequence"]
"""Frames with targets: the last or all frames of a clip; or a whole video, as T equally spaced frames with one target
("video") or as all frames, ``interval`` apart, with their targets ("sequence")."""

Frame = tuple[int, Path, Targets]


@dataclass(frozen=True)
class SampleSpec:
    """Requirements of a task for each sample; ValueError if they contradict each other."""

    targets: tuple[str, ...] = ("label",)  # empty: every image is a sample, and no label file is needed
    frames: int = 1  # images per sample, T
    interval: float = 0.0  # seconds between two images
    padding: Padding = "first"
    targets_of: TargetsOf = "last"
    random_frames: bool = False  # whether training draws T frames of a whole video each time, in order

    def __post_init__(self) -> None:
        one_of("sample", "targets_of", self.targets_of, get_args(TargetsOf))
        if self.random_frames and self.targets_of != "video":
            raise ValueError("random_frames needs whole videos; write targets_of: video, or remove random_frames")
        apart = f"{self.frames} frames {self.interval:g} s apart"
        if self.targets_of == "video" and (self.frames < 1 or self.interval):
            raise ValueError(f"a video cannot give {apart}; ask for 1 or more equally spaced frames, and no interval")
        if self.targets_of == "sequence" and (self.frames != 1 or not 0 <= self.interval < math.inf):
            raise ValueError(f"a sequence cannot have {apart}: it is a whole video; write frames: 1 and the interval")
        positive = self.frames == 1 or (self.frames > 1 and 0 < self.interval < math.inf)
        if self.targets_of not in WHOLE and not positive:
            raise ValueError(f"a sample cannot have {apart}; ask for 1 frame, or for more with an interval above 0 s")


LABELLED = SampleSpec()  # one frame and its label


@dataclass(frozen=True)
class Sample:
    site: str
    video: str
    index: int  # number in the current frame's file name
    images: tuple[Path, ...]  # T files, oldest first; the last is the current frame
    targets: Targets = field(hash=False)  # of the current frame; a target has one file, or one per instrument
    source: Source
    classes: tuple[str, ...]
    added: bool = False  # whether `site` is the site named in the training site's `also_trains_on`
    earlier: tuple[Targets, ...] = field(default=(), hash=False)  # of the T - 1 earlier frames, if they have targets
    pool: tuple[Path, ...] = field(default=(), hash=False)  # all images of a whole video of which training draws T

    @property
    def shown(self) -> tuple[Path, ...]:
        """All different images of the sample, the current frame last."""
        current = self.images[-1]
        return (*(path for path in dict.fromkeys((*self.pool, *self.images)) if path != current), current)

    @property
    def labelled(self) -> tuple[tuple[Path, Targets], ...]:
        """Image and targets of each frame with targets, the current frame last."""
        targets = (*self.earlier, self.targets)
        return tuple(zip(self.images[-len(targets) :], targets, strict=True))

    @property
    def current(self) -> Sample:
        """Sample of only the current frame, with its targets."""
        return replace(self, images=self.images[-1:], earlier=(), pool=())


@dataclass(frozen=True)
class Item:
    """A sample read at its native size.

    "label" is uint8 (H, W) ids of the site's classes. "depth" is float32 (H, W) in mm, 0 for unknown. Other targets
    have the forms of `targets.FORMS`. If all frames have targets, T comes first: (T, H, W). Only PFedSIS's test folder
    has targets of another size than their images.
    """

    images: np.ndarray  # uint8 (T, H, W, 3) RGB
    targets: Mapping[str, np.ndarray]
    name: str  # video and frame number, fit for a file name
    video: str = ""
    number: int = 0


def samples(site: Site, split: str, spec: SampleSpec = LABELLED) -> list[Sample]:
    """List a split's samples in the order of site.yaml and of time, then the samples of the added site.

    SiteError if the split has no frames, a video is shorter than its range, or the data set lacks a target.
    """
    with _naming(site.name):
        return list_samples(site, split, spec)


def list_samples(site: Site, split: str, spec: SampleSpec) -> list[Sample]:
    """List samples as `samples` does, but raise the `DataError` itself."""
    for name in spec.targets:
        if name not in site.source.reader.TARGETS:
            noun, datasets = target_noun(name), [dataset for dataset in source_names() if name in targets_of(dataset)]
            remedy = f"datasets with {noun}: {', '.join(datasets) or 'none'}"
            raise DataError(site.path, f"{site.dataset} has no {noun}", remedy)
    parts = site.split.get(split, ())
    videos = frozenset(site.source.reader.videos(site.root)) if parts else frozenset()
    listed = [sample for part in parts for sample in _samples_of(site, split, part, spec, videos)]
    if not listed:
        raise DataError(site.path, f"split {split!r} has no frames", "list its videos under 'split'")
    if split == "train" and site.added is not None:
        listed += [replace(one, classes=site.classes, added=True) for one in list_samples(site.added, split, spec)]
    return listed


def _samples_of(site: Site, split: str, part: VideoRange, spec: SampleSpec, videos: frozenset[str]) -> list[Sample]:
    video = part.video
    if video not in videos:
        raise DataError(site.root, f"has no video {video!r}", "put it back or correct 'split'")
    listing = _listing(site, video, spec)
    if part.stop is not None and part.stop > len(listing):
        what = f"split {split!r} asks for frames {part.start} to {part.stop} of {video}, which has {len(listing)}"
        raise DataError(site.path, what, "correct the range or complete the video")
    chosen = listing[part.start : part.stop : site.frame_interval]
    if spec.targets_of in WHOLE:
        return [_whole_video(site, video, chosen, spec)] if chosen else []
    clip = _clip_maker(site, video, spec, listing=listing, begin=listing[part.start][0] if part.start else None)
    return [_sample(site, video, clip(frame), spec) for frame in chosen]


def _listing(site: Site, video: str, spec: SampleSpec) -> Listing:
    """List the frames with the required targets; without required targets, list all images."""
    reader = site.source.reader
    if spec.targets:
        listing = reader.frames(site.root, video)
    else:
        listing = [(number, image, {}) for number, image in sorted(reader.images(site.root, video).items())]
    for (before, *_), (after, *_) in pairwise(listing):
        if after <= before:
            what = f"{video} has frame {after} after frame {before}"
            raise DataError(site.root, what, "number its frames in the order of time")
    return [(number, image, {name: files[name] for name in spec.targets}) for number, image, files in listing]


def _sample(site: Site, video: str, frames: Sequence[Frame], spec: SampleSpec) -> Sample:
    (number, _, targets), images = frames[-1], tuple(image for _, image, _ in frames)
    earlier = tuple(targets for _, _, targets in frames[:-1]) if spec.targets_of in ("all", "sequence") else ()
    return Sample(site.name, video, number, images, targets, site.source, site.classes, earlier=earlier)


def _clip_maker(
    site: Site, video: str, spec: SampleSpec, *, listing: Listing, begin: int | None
) -> Callable[[Frame], tuple[Frame, ...]]:
    """Return a function from a frame to the T frames of its clip, oldest first.

    A missing frame is listed under its expected name, or as "(0.2 s before 000000068.jpg)" if names have no numbers.
    ``listing`` has the frames with targets; if only the last frame needs targets, earlier frames may be any image. No
    clip shows a frame before number ``begin``, by default the video's first.
    """
    if spec.frames == 1 or not site.history:
        return lambda frame: (frame,) * spec.frames
    known: dict[int, Frame] = {frame[0]: frame for frame in listing}
    if spec.targets_of == "last":
        known = {number: (number, image, {}) for number, image in site.source.reader.images(site.root, video).items()}
    step = _step(site, video, known, spec)
    start = min(known, default=0) if begin is None else begin

    def clip(frame: Frame) -> tuple[Frame, ...]:
        number = frame[0]
        first = min(start, number)
        padding = number if spec.padding == "current" else first
        past = range(number - (spec.frames - 1) * step, number, step)
        wanted = [n if n >= first else padding for n in past]
        return (*(known.get(n) or _missing(frame, n, spec.interval / step) for n in wanted), frame)

    return clip


def _missing(frame: Frame, wanted: int, seconds: float) -> Frame:
    """Name the files of a missing frame after an existing frame; ``seconds`` lie between two frame numbers."""
    number, image, targets = frame

    def named(path: Path) -> Path:
        if frame_number(image) == number:
            return replace_frame_number(path, wanted)
        return path.with_name(f"({(number - wanted) * seconds:g} s before {path.name})")

    return wanted, named(image), {name: tuple(map(named, files)) for name, files in targets.items()}


def _step(site: Site, video: str, known: Mapping[int, Frame], spec: SampleSpec) -> int:
    """Convert the interval to a number of frame numbers; raise a DataError if the video does not have it."""
    interval, image = spec.interval, "an image" if spec.targets_of == "last" else "a labelled frame"
    remedy = "or write 'history: false' in it, which repeats the frame"
    clips = f"clips of {spec.frames} frames {interval:g} s apart"
    if spec.targets_of == "sequence":
        remedy, clips = "or set no interval to get all frames", f"sequences of frames {interval:g} s apart"
    if site.rate is None:
        what = f"the task needs {clips}, but the rate of {site.dataset}'s frame numbers is not known"
        raise DataError(site.path, what, f"write 'rate' (frame numbers per second), {remedy}")
    step, grid = whole_steps(interval, site.rate), max(spacing(known), 1)
    if step < 1 or step % grid:
        every = grid / site.rate
        what = (
            f"the task needs {clips}, but {video} of {site.dataset} has {image} every {every:g} s "
            f"(every {grid} numbers, {site.rate:g} numbers a second)"
        )
        raise DataError(site.path, what, f"ask for a multiple of {every:g} s, unpack more of its images, {remedy}")
    return step


def _whole_video(site: Site, video: str, listing: Listing, spec: SampleSpec) -> Sample:
    """Make one sample of a video or of a range of it."""
    if not site.history:
        what = f"'history: false' hides earlier frames, but the task needs whole videos of {video}"
        raise DataError(site.path, what, "write 'history: true', or choose a task of single frames")
    if spec.targets_of == "sequence":
        step = _step(site, video, {frame[0]: frame for frame in listing}, spec) if spec.interval else 0
        frames = [frame for frame in listing if not step or (frame[0] - listing[0][0]) % step == 0]
        return _sample(site, video, frames, spec)
    first, _, target = listing[0]
    for number, _, other in listing:
        if other != target:
            what = f"{video} has another target at frame {number} than at frame {first}"
            raise DataError(site.root, what, "ask for targets of frames (targets_of: last or sequence), not of a video")
    frames = [listing[index] for index in equally_spaced(len(listing), spec.frames)]
    pool = tuple(image for _, image, _ in listing) if spec.random_frames else ()
    return replace(_sample(site, video, frames, spec), pool=pool)


def equally_spaced(count: int, frames: int) -> list[int]:
    """Return T equally spaced indices among ``count`` with both ends, for T = 1 the middle; they may repeat."""
    if frames == 1:
        return [(count - 1) // 2]
    return [(2 * index * (count - 1) + frames - 1) // (2 * (frames - 1)) for index in range(frames)]


def read_sample(sample: Sample) -> Item:
    """Read a sample's images and targets, and check that they belong together.

    SiteError if a file is missing, unreadable or of another size than its image, or has an unknown id or colour.
    """
    images = {path: read_image(sample, path) for path in dict.fromkeys(sample.images)}
    current = sample.images[-1]
    size = images[current].shape[:2]
    with _naming(sample.site):
        for path, image in images.items():
            refuse_other_size("earlier frame", image.shape[:2], path, image_size=size, image_path=current)
    targets: dict[str, np.ndarray] = {}
    for name in sample.targets:
        files = {target[name]: image for image, target in sample.labelled}  # a repeated frame is read once
        read = {key: read_target(sample, name, key, image=image, image_size=size) for key, image in files.items()}
        targets[name] = over_time([read[target[name]] for _, target in sample.labelled])
    stacked = np.stack([images[path] for path in sample.images])
    name = f"{sample.video.replace('/', '_')}-{sample.index}"
    return Item(stacked, targets, name, sample.video, sample.index)


def read_image(sample: Sample, path: Path) -> np.ndarray:
    """Read one image of a sample as uint8 (H, W, 3) RGB; SiteError if it is missing or unreadable."""
    with _naming(sample.site):
        return sample.source.reader.read_image(path)


def read_target(sample: Sample, name: str, files: tuple[Path, ...], *, image: Path, image_size: Size) -> np.ndarray:
    """Read one frame's target, see `Item`; check its form and, for a map, its size. Errors as in `read_sample`."""
    reader = sample.source.reader
    with _naming(sample.site):
        target = reader.read_target(name, files)
        refuse_other_form(name, target, files[0])
        if is_map(name) and not reader.native_targets(sample.video):
            size, noun = target.shape[:2], target_noun(name)
            target = turned(target, turn_of(noun, size, files[0], image_size=image_size, image_path=image))
    return merge_classes(target, sample.source.classes, sample.classes) if name == "label" else target


def target_noun(name: str) -> str:
    """Return the word for a target's file in messages."""
    return "mask" if name == "label" else name


@contextmanager
def _naming(site: str) -> Iterator[None]:
    """Turn a DataError into a SiteError that names the site."""
    try:
        yield
    except DataError as error:
        raise SiteError(f"site {site}: {error}") from error
