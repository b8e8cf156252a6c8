"""List and read the labelled frames of a site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared_components.data.classes import merge_classes
from shared_components.data.files import DataError, refuse_other_size
from shared_components.data.readers import find_reader
from shared_components.data.site_file import SPLITS, Site, SiteError, VideoRange, load_site

__all__ = [
    "SPLITS",
    "Frame",
    "Site",
    "SiteError",
    "VideoRange",
    "frames",
    "load_site",
    "read_image",
    "read_mask",
    "read_pair",
]


@dataclass(frozen=True)
class Frame:
    """One labelled frame on disk.

    `index` is the number in the file's name. `masks` holds one file, or one per instrument.
    """

    site: str
    video: str
    index: int
    image: Path
    masks: tuple[Path, ...]
    dataset: str
    class_map: str


def frames(site: Site, split: str) -> list[Frame]:
    """List a split's frames: videos as listed in `site.yaml`, each in time order.

    Raises:
        SiteError: the split has no frames, or a video has fewer than its range asks for.
    """
    with _at(site.name):
        return list_frames(site, split)


def read_image(frame: Frame) -> np.ndarray:
    """Read a frame as uint8 (H, W, 3) RGB.

    Raises:
        SiteError: the file is missing or unreadable.
    """
    with _at(frame.site):
        return find_reader(frame.dataset).read_image(frame.image)


def read_mask(frame: Frame) -> np.ndarray:
    """Read a frame's mask as uint8 (H, W), canonical ids of the frame's class map.

    Raises:
        SiteError: a file is missing, unreadable or holds an id or colour that the dataset does not have.
    """
    reader = find_reader(frame.dataset)
    with _at(frame.site):
        return merge_classes(reader.read_mask(frame.masks), reader.CLASS_MAP, frame.class_map)


def read_pair(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Read a frame and its mask, and check that they belong together.

    Returns:
        uint8 (H, W, 3) RGB, and uint8 (H, W) canonical ids of the same size; of another size only where the
        dataset keeps masks at the native size (PFedSIS's test folder).

    Raises:
        SiteError: as `read_image` and `read_mask`, or the sizes differ.
    """
    image, mask = read_image(frame), read_mask(frame)
    if not find_reader(frame.dataset).native_masks(frame.video):
        with _at(frame.site):
            refuse_other_size(image, mask, image_path=frame.image, mask_path=frame.masks[0])
    return image, mask


def list_frames(site: Site, split: str) -> list[Frame]:
    """As `frames`, but raise the `DataError` itself."""
    listed = [frame for part in site.split.get(split, ()) for frame in _frames_of(site, split, part)]
    if not listed:
        raise DataError(site.path, f"split {split!r} has no frames", "list its videos under 'split'")
    return listed


def _frames_of(site: Site, split: str, part: VideoRange) -> list[Frame]:
    reader = find_reader(site.dataset)
    if part.video not in reader.videos(site.root):
        raise DataError(site.root, f"holds no video {part.video!r}", "put it back or correct 'split'")
    listing = reader.frames(site.root, part.video)
    if part.stop is not None and part.stop > len(listing):
        what = f"split {split!r} asks for frames {part.start} to {part.stop} of {part.video}, which has"
        raise DataError(site.path, f"{what} {len(listing)}", "correct the range or complete the video")
    return [
        Frame(site.name, part.video, index, image, masks, site.dataset, site.class_map)
        for index, image, masks in listing[part.start : part.stop : site.frame_interval]
    ]


@contextmanager
def _at(site: str) -> Iterator[None]:
    """Name the site in the errors of its files."""
    try:
        yield
    except DataError as error:
        raise SiteError(f"site {site}: {error}") from error
