"""List and read the samples of a site: images and, by name, what is to be learnt about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from shared_components.data.classes import merge_classes
from shared_components.data.clips import clip_maker
from shared_components.data.files import DataError, Size, refuse_other_size
from shared_components.data.readers import Listing
from shared_components.data.site import Site, SiteError, VideoRange
from shared_components.data.source import Source, source_names, targets_of


@dataclass(frozen=True)
class SampleSpec:
    """What a task asks of each sample.

    Attributes:
        targets: names of its targets; none: every image is a sample, and no other file is needed.
        frames: images of a sample, T; `interval`: seconds between them.
        padding: what stands for a frame before a video's beginning, see `clips.PADDINGS`.

    Raises:
        ValueError: no frame, or several with no time between them.
    """

    targets: tuple[str, ...] = ("label",)
    frames: int = 1
    interval: float = 0.0
    padding: str = "first"

    def __post_init__(self) -> None:
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
    them the current frame. A target has one file, or one per instrument. `added` says that the sample is of the site
    that another one trains on besides its own frames; `site` is then the former's name.
    """

    site: str
    video: str
    index: int
    images: tuple[Path, ...]
    targets: Mapping[str, tuple[Path, ...]] = field(hash=False)
    source: Source
    classes: tuple[str, ...]
    added: bool = False


@dataclass(frozen=True)
class Item:
    """A sample that was read, at its native size.

    `images` is uint8 (T, H, W, 3) RGB. Of the targets, "label" is uint8 (H, W), ids of the site's classes, and
    "depth" float32 (H, W) in mm, 0 where it is not known. A target may have another size than its images only
    where the dataset has it so (PFedSIS's test folder).
    `name` is the video and the frame's number, fit for a file name.
    """

    images: np.ndarray
    targets: Mapping[str, np.ndarray]
    name: str


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
    return Item(images, read_targets(sample, size), f"{sample.video.replace('/', '_')}-{sample.index}")


def read_image(sample: Sample, path: Path) -> np.ndarray:
    """Read one image of a sample as uint8 (H, W, 3) RGB.

    Raises:
        SiteError: the file is missing or unreadable.
    """
    with _at(sample.site):
        return sample.source.reader.read_image(path)


def read_targets(sample: Sample, image_size: Size) -> dict[str, np.ndarray]:
    """Read a sample's targets by name, see `Item`.

    Raises:
        SiteError: as `read_sample`.
    """
    with _at(sample.site):
        return {name: _read_target(sample, name, image_size) for name in sample.targets}


def list_samples(site: Site, split: str, spec: SampleSpec) -> list[Sample]:
    """As `samples`, but raise the `DataError` itself."""
    _refuse_unknown_targets(site, spec)
    listed = [sample for part in site.split.get(split, ()) for sample in _samples_of(site, split, part, spec)]
    if not listed:
        raise DataError(site.path, f"split {split!r} has no frames", "list its videos under 'split'")
    if split == "train" and site.added is not None:
        others = list_samples(site.added, split, spec)
        listed += [replace(sample, classes=site.classes, added=True) for sample in others]
    return listed


def target_noun(name: str) -> str:
    """Return what a target's file is called in a sentence."""
    return "mask" if name == "label" else name


def _read_target(sample: Sample, name: str, image_size: Size) -> np.ndarray:
    reader, files = sample.source.reader, sample.targets[name]
    target = reader.read_target(name, files)
    if not reader.native_targets(sample.video):
        size, noun = target.shape[:2], target_noun(name)
        refuse_other_size(noun, size, files[0], image_size=image_size, image_path=sample.images[-1])
    return merge_classes(target, sample.source.classes, sample.classes) if name == "label" else target


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


def _samples_of(site: Site, split: str, part: VideoRange, spec: SampleSpec) -> list[Sample]:
    reader = site.source.reader
    if part.video not in reader.videos(site.root):
        raise DataError(site.root, f"holds no video {part.video!r}", "put it back or correct 'split'")
    listing = _listing(site, part.video, spec)
    if part.stop is not None and part.stop > len(listing):
        what = f"split {split!r} asks for frames {part.start} to {part.stop} of {part.video}, which has"
        raise DataError(site.path, f"{what} {len(listing)}", "correct the range or complete the video")
    begin = listing[part.start][0] if part.start else None
    clip = clip_maker(site, part.video, frames=spec.frames, interval=spec.interval, padding=spec.padding, begin=begin)
    return [
        Sample(site.name, part.video, number, clip(number, image), targets, site.source, site.classes)
        for number, image, targets in listing[part.start : part.stop : site.frame_interval]
    ]


def _listing(site: Site, video: str, spec: SampleSpec) -> Listing:
    """List the frames that have the targets asked for; all images where none is."""
    reader = site.source.reader
    listing = reader.frames(site.root, video) if spec.targets else _all_images(site, video)
    for (before, *_), (after, *_) in pairwise(listing):
        if after <= before:
            what = f"{video} has frame {after} after frame {before}"
            raise DataError(site.root, what, "number its frames in the order of time")
    return [(number, image, {name: files[name] for name in spec.targets}) for number, image, files in listing]


def _all_images(site: Site, video: str) -> Listing:
    images = site.source.reader.images(site.root, video)
    return [(number, image, {}) for number, image in sorted(images.items())]


@contextmanager
def _at(site: str) -> Iterator[None]:
    """Name the site in the errors of its files."""
    try:
        yield
    except DataError as error:
        raise SiteError(f"site {site}: {error}") from error
