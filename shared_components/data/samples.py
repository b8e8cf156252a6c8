"""List and read the samples of a site: images and, by name, what is to be learnt about them.

A clip is T images at a real interval, the last of them the current frame. A frame before the first one of a video, or
of the stretch that a split has of it, is replaced, so that no clip shows another split: by that first frame, or by the
current one (`PADDINGS`). A site may refuse to show history (`history: false`): then a clip is the current frame T
times. Where every frame of a clip has targets (`TARGETS_OF`), a clip steps over the labelled frames alone: where a data
set labels one frame a second, its frames are whole seconds apart. What stands for a frame brings its own targets.

Or a sample is a whole video, or the stretch that a split has of it, see `whole_videos`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from shared_components.common.arguments import one_of
from shared_components.data.classes import merge_classes
from shared_components.data.files import (
    DataError,
    Size,
    frame_number,
    refuse_other_size,
    spacing,
    whole_steps,
    with_number,
)
from shared_components.data.orientation import turn_of, turned
from shared_components.data.readers import Listing, Targets
from shared_components.data.site import Site, SiteError, Source, VideoRange, source_names, targets_of
from shared_components.data.targets import is_map, over_time, refuse_other_form
from shared_components.data.whole_videos import at_interval, equally_spaced, one_target

PADDINGS = ("first", "current")
"""What stands for a frame before a video's beginning: the video's first frame, which keeps the order of time, or the
current frame, as in FedST (Section 4.1.3)."""
WHOLE = ("video", "sequence")
TARGETS_OF = ("last", "all", *WHOLE)
"""Which frames of a clip have targets: the current one, or every one. Of a whole video: the one target that it has
("video", of T equally spaced frames), or that of every frame ("sequence", of all, `interval` apart)."""

Frame = tuple[int, Path, Targets]
Clip = Callable[[Frame], tuple[Frame, ...]]
"""A frame -> the T frames of its clip, oldest first."""


def clip_maker(site: Site, video: str, spec: SampleSpec, *, listing: Listing, begin: int | None = None) -> Clip:
    """Return what lists the frames of a video's clips.

    A file that should be between those that are there is listed under the name it should have, or, where images are
    not named by their numbers, as what it is: (0.2 s before 000000068.jpg).

    Args:
        spec: of the clips: their length T, the seconds between two frames, what pads them.
        listing: the frames with targets, over which a clip steps where all of its frames have them; else over all
            images on disk, and its earlier frames have no targets.
        begin: number of the first frame that a clip may show, by default the video's first.

    Raises:
        DataError: the video cannot give frames this far apart.
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
        instead = number if spec.padding == "current" else first
        past = [number - back * step for back in range(spec.frames - 1, 0, -1)]
        wanted = [n if n >= first else instead for n in past]
        return (*(known.get(n) or _missing(frame, n, spec.interval / step) for n in wanted), frame)

    return clip


def _missing(frame: Frame, wanted: int, seconds: float) -> Frame:
    """Name the files of a number that is not there, by a frame that is; `seconds` lie between two numbers."""
    number, image, targets = frame

    def named(path: Path) -> Path:
        if frame_number(image) == number:
            return with_number(path, wanted)
        return path.with_name(f"({(number - wanted) * seconds:g} s before {path.name})")

    return wanted, named(image), {name: tuple(map(named, files)) for name, files in targets.items()}


def _step(site: Site, video: str, known: Mapping[int, Frame], spec: SampleSpec) -> int:
    """Return the distance in frame numbers that the interval is."""
    interval, what = spec.interval, "an image" if spec.targets_of == "last" else "a labelled frame"
    repeat = "or write 'history: false' in it, which repeats the frame"
    asked = f"clips of {spec.frames} frames {interval:g} s apart"
    if spec.targets_of == "sequence":
        repeat, asked = "or ask for no interval, which is all of them", f"sequences of frames {interval:g} s apart"
    if site.rate is None:
        why = f"{asked} are asked for, but the rate of {site.dataset}'s frame numbers is not known"
        raise DataError(site.path, why, f"write 'rate' (frame numbers per second), {repeat}")
    step, grid = whole_steps(interval, site.rate), max(spacing(known), 1)
    if step < 1 or step % grid:
        every = grid / site.rate
        why = (
            f"{asked} are asked for, but {video} of {site.dataset} has {what} every {every:g} s "
            f"(every {grid} numbers, {site.rate:g} numbers a second)"
        )
        raise DataError(site.path, why, f"ask for a multiple of {every:g} s, unpack more of its images, {repeat}")
    return step


@dataclass(frozen=True)
class SampleSpec:
    """What a task asks of each sample.

    Attributes:
        targets: names of its targets; none: every image is a sample, and no other file is needed.
        frames: images of a sample, T; `interval`: seconds between them.
        padding: what stands for a frame before a video's beginning, see `PADDINGS`.
        targets_of: the frames of a clip that have targets, see `TARGETS_OF`.
        random_frames: of a whole video with one target: training draws T of its frames each time, in their order.

    Raises:
        ValueError: no frame, several with no time between them, an interval or a draw where there can be none, or
            frames with targets that are none of `TARGETS_OF`.
    """

    targets: tuple[str, ...] = ("label",)
    frames: int = 1
    interval: float = 0.0
    padding: str = "first"
    targets_of: str = "last"
    random_frames: bool = False

    def __post_init__(self) -> None:
        one_of("sample", "targets_of", self.targets_of, TARGETS_OF)
        if self.random_frames and self.targets_of != "video":
            raise ValueError("frames are drawn of whole videos alone; write targets_of: video, or no random_frames")
        if self.targets_of == "video" and (self.frames < 1 or self.interval):
            raise ValueError(
                f"{self.frames} equally spaced frames of a video, {self.interval:g} s apart, cannot be; ask for 1 or "
                "more frames without an interval"
            )
        if self.targets_of == "sequence" and (self.frames != 1 or not 0 <= self.interval < math.inf):
            raise ValueError(
                f"a sequence of {self.frames} frames {self.interval} s apart cannot be, since it has all of its video; "
                "write frames: 1, and the interval alone"
            )
        if self.targets_of in WHOLE:
            return
        if self.frames < 1 or (self.frames > 1 and not 0 < self.interval < math.inf):
            raise ValueError(
                f"a sample of {self.frames} frames {self.interval} s apart cannot be; "
                "ask for 1 frame, or for more with an interval of more than 0 s"
            )


LABELLED = SampleSpec()
"""One frame and its label."""


@dataclass(frozen=True)
class Sample:
    """One sample on disk: the current frame, those before it, and the files of each target.

    `index` is the number in the current frame's file name. `images` are T files, oldest first, the last of
    them the current frame. A target has one file, or one per instrument. `earlier` are the targets of the T - 1 frames
    before, where all frames have them. `added` says that the sample is of the site that another one trains on besides
    its own frames; `site` is then the former's name. `pool` has all images of a whole video of which T are drawn.
    """

    site: str
    video: str
    index: int
    images: tuple[Path, ...]
    targets: Targets = field(hash=False)
    source: Source
    classes: tuple[str, ...]
    added: bool = False
    earlier: tuple[Targets, ...] = field(default=(), hash=False)
    pool: tuple[Path, ...] = field(default=(), hash=False)

    @property
    def shown(self) -> tuple[Path, ...]:
        """Every image that it may show once, the current one last."""
        current = self.images[-1]
        return (*(path for path in dict.fromkeys((*self.pool, *self.images)) if path != current), current)

    @property
    def labelled(self) -> tuple[tuple[Path, Targets], ...]:
        """Image and targets of each frame that has targets, the current one last."""
        targets = (*self.earlier, self.targets)
        return tuple(zip(self.images[-len(targets) :], targets, strict=True))

    @property
    def current(self) -> Sample:
        """Its current frame alone, with its targets."""
        return replace(self, images=self.images[-1:], earlier=(), pool=())


@dataclass(frozen=True)
class Item:
    """A sample that was read, at its native size.

    `images` is uint8 (T, H, W, 3) RGB. Of the targets, "label" is uint8 (H, W), ids of the site's classes, and
    "depth" float32 (H, W) in mm, 0 where it is not known; others have the forms of `targets.FORMS`. Where all frames of
    a clip have them, T comes first: (T, H, W). A target may have another size than its images only where the dataset
    has it so (PFedSIS's test folder).
    `name` is the video and the frame's number, fit for a file name; `video` and `number` are the two themselves.
    """

    images: np.ndarray
    targets: Mapping[str, np.ndarray]
    name: str
    video: str = ""
    number: int = 0


def samples(site: Site, split: str, spec: SampleSpec = LABELLED) -> list[Sample]:
    """List a split's samples: videos as listed in `site.yaml`, each in time order; then those of a site it adds.

    Raises:
        SiteError: the split has no frames, a video has fewer than its range asks for, or the dataset has not
            what is asked for.
    """
    with _at(site.name):
        return list_samples(site, split, spec)


def read_sample(sample: Sample) -> Item:
    """Read a sample's images and targets, and check that they belong together.

    Raises:
        SiteError: a file is missing, unreadable, of another size than its image, or holds an id or colour
            that the dataset does not have.
    """
    found = {path: read_image(sample, path) for path in dict.fromkeys(sample.images)}
    current = sample.images[-1]
    size = found[current].shape[:2]
    with _at(sample.site):
        for path, image in found.items():
            refuse_other_size("earlier frame", image.shape[:2], path, image_size=size, image_path=current)
    images = np.stack([found[path] for path in sample.images])
    name = f"{sample.video.replace('/', '_')}-{sample.index}"
    return Item(images, read_targets(sample, size), name, sample.video, sample.index)


def read_image(sample: Sample, path: Path) -> np.ndarray:
    """Read one image of a sample as uint8 (H, W, 3) RGB.

    Raises:
        SiteError: the file is missing or unreadable.
    """
    with _at(sample.site):
        return sample.source.reader.read_image(path)


def read_targets(sample: Sample, image_size: Size) -> dict[str, np.ndarray]:
    """Read a sample's targets by name, see `Item`; a frame that is shown twice is read once.

    Raises:
        SiteError: as `read_sample`.
    """
    found: dict[str, np.ndarray] = {}
    for name in sample.targets:
        files = {targets[name]: image for image, targets in sample.labelled}
        read = {of: read_target(sample, name, of, image=image, image_size=image_size) for of, image in files.items()}
        found[name] = over_time([read[targets[name]] for _, targets in sample.labelled])
    return found


def read_target(sample: Sample, name: str, files: tuple[Path, ...], *, image: Path, image_size: Size) -> np.ndarray:
    """Read the files of one frame's target, and compare it with its form and a map with its image, see `Item`.

    Raises:
        SiteError: as `read_sample`.
    """
    reader = sample.source.reader
    with _at(sample.site):
        target = reader.read_target(name, files)
        refuse_other_form(name, target, files[0])
        if is_map(name) and not reader.native_targets(sample.video):
            size, noun = target.shape[:2], target_noun(name)
            target = turned(target, turn_of(noun, size, files[0], image_size=image_size, image_path=image))
    return merge_classes(target, sample.source.classes, sample.classes) if name == "label" else target


def list_samples(site: Site, split: str, spec: SampleSpec) -> list[Sample]:
    """As `samples`, but raise the `DataError` itself."""
    _refuse_unknown_targets(site, spec)
    parts = site.split.get(split, ())
    there = frozenset(site.source.reader.videos(site.root)) if parts else frozenset()
    listed = [sample for part in parts for sample in _samples_of(site, split, part, spec, there)]
    if not listed:
        raise DataError(site.path, f"split {split!r} has no frames", "list its videos under 'split'")
    if split == "train" and site.added is not None:
        others = list_samples(site.added, split, spec)
        listed += [replace(sample, classes=site.classes, added=True) for sample in others]
    return listed


def target_noun(name: str) -> str:
    """Return what a target's file is called in a sentence."""
    return "mask" if name == "label" else name


def _refuse_unknown_targets(site: Site, spec: SampleSpec) -> None:
    for name in spec.targets:
        if name in site.source.reader.TARGETS:
            continue
        having = [dataset for dataset in source_names() if name in targets_of(dataset)]
        raise DataError(
            site.path,
            f"{site.dataset} has no {target_noun(name)}",
            f"datasets with {target_noun(name)}: {', '.join(having) or 'none'}",
        )


def _samples_of(site: Site, split: str, part: VideoRange, spec: SampleSpec, there: frozenset[str]) -> list[Sample]:
    if part.video not in there:
        raise DataError(site.root, f"holds no video {part.video!r}", "put it back or correct 'split'")
    listing = _listing(site, part.video, spec)
    if part.stop is not None and part.stop > len(listing):
        what = f"split {split!r} asks for frames {part.start} to {part.stop} of {part.video}, which has"
        raise DataError(site.path, f"{what} {len(listing)}", "correct the range or complete the video")
    chosen = listing[part.start : part.stop : site.frame_interval]
    if spec.targets_of in WHOLE:
        return [_whole(site, part.video, chosen, spec)] if chosen else []
    begin = listing[part.start][0] if part.start else None
    clip = clip_maker(site, part.video, spec, listing=listing, begin=begin)
    return [_sample(site, part.video, clip(frame), spec) for frame in chosen]


def _whole(site: Site, video: str, listing: Listing, spec: SampleSpec) -> Sample:
    """Make one sample of a video, or of a stretch of it."""
    if not site.history:
        what = f"'history: false' hides the frames before a sample's own, and whole videos of {video} are asked for"
        raise DataError(site.path, what, "write 'history: true', or choose a task of single frames")
    if spec.targets_of == "sequence":
        step = _step(site, video, {frame[0]: frame for frame in listing}, spec) if spec.interval else 0
        return _sample(site, video, at_interval(listing, step), spec)
    one_target(site.root, video, listing)
    frames = [listing[place] for place in equally_spaced(len(listing), spec.frames)]
    pool = tuple(image for _, image, _ in listing) if spec.random_frames else ()
    return replace(_sample(site, video, frames, spec), pool=pool)


def _sample(site: Site, video: str, frames: Sequence[Frame], spec: SampleSpec) -> Sample:
    """Make a sample of the frames of its clip."""
    (number, _, targets), images = frames[-1], tuple(image for _, image, _ in frames)
    earlier = tuple(targets for _, _, targets in frames[:-1]) if spec.targets_of in ("all", "sequence") else ()
    return Sample(site.name, video, number, images, targets, site.source, site.classes, earlier=earlier)


def _listing(site: Site, video: str, spec: SampleSpec) -> Listing:
    """List the frames that have the targets asked for; all images where none is."""
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


@contextmanager
def _at(site: str) -> Iterator[None]:
    """Name the site in the errors of its files."""
    try:
        yield
    except DataError as error:
        raise SiteError(f"site {site}: {error}") from error
