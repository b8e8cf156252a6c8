"""What a new site.yaml has to say and can be seen: the values in the masks, a split by videos, a video's rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.counted import counted
from shared_components.data.custom.guess_layout import Found
from shared_components.data.custom.ids import Value, counts
from shared_components.data.custom.layout import files_of, images_of, is_volume, placed, video_names
from shared_components.data.custom.masks import packed_volume, read_mask
from shared_components.data.files import DataError, frame_number
from shared_components.data.nifti import lies_as_written

_THREADS = 4  # decoding releases Python's lock
_MOST = 64  # values that can be a table
_SHARE = 5  # one video in so many is for validation, and one for the test

Split = dict[str, list[Any]]


@dataclass(frozen=True)
class Values:
    """What the masks hold.

    Attributes:
        pixels: of each value; colours where `coloured`.
        masks: how many masks hold each; `count`: of so many.
        unlabelled: images without a mask, or frames of volumes without any label.
        turned: a volume whose axes point otherwise than SurgFL writes them.
    """

    coloured: bool
    pixels: Counter[Value]
    masks: Counter[Value]
    count: int
    unlabelled: int
    turned: Path | None = None

    def share(self, value: Value) -> float:
        """Return which share of all pixels has a value, in percent."""
        return 100 * self.pixels[value] / max(1, sum(self.pixels.values()))


def own_videos(root: Path, found: Found) -> list[str]:
    """List the videos that lie as a folder was found, in natural order."""
    return video_names(root, found.images)


def values_of(root: Path, found: Found, videos: Sequence[str], *, known: Collection[Value] = ()) -> Values:
    """Read all masks of the videos; ``known`` are values that somebody has named already.

    Raises:
        DataError: a mask cannot be read, there are none, or they hold too many values to be a table's.
    """
    surveyed = _of_volumes(root, found, videos) if found.kind == "nifti" else _of_files(root, found, videos, known)
    if len(surveyed.pixels) > _MOST:
        what = f"{'colours' if surveyed.coloured else 'values'} in {counted(surveyed.count, 'mask')}"
        raise DataError(
            placed(root, found.masks, videos[0]),
            f"is of masks with {len(surveyed.pixels)} {what}, too many to name",
            "export the masks without smoothing, anti-aliasing or compression",
        )
    return surveyed


def propose_split(videos: Sequence[str], frames: int) -> Split:
    """Propose which videos are for training, validation and the test; one video is cut by time, in this order.

    Videos that are called so go where their names say (`test/video_9`).

    Args:
        videos: in natural order.
        frames: labelled ones of the first video.
    """
    if len(videos) == 1:
        return _by_time(videos[0], frames)
    told = {split: [v for v in videos if v.lower().startswith(split[:5])] for split in ("validation", "test")}
    rest = [video for video in videos if not any(video in names for names in told.values())]
    split: Split = {"train": rest, "validation": told["validation"], "test": told["test"]}
    cut, missing = max(1, len(rest) // _SHARE), [name for name in told if not told[name]]
    for name in reversed(missing[: len(rest) - 1]):  # two videos are for training and validation
        split[name], rest[:] = rest[-cut:], rest[:-cut]
    return {name: listed for name, listed in split.items() if listed}


def video_rate(root: Path, found: Found, videos: Sequence[str]) -> float | None:
    """Return the frames per second of the video files, where they agree; None of folders of images."""
    rates = {_rate(images.where) if (images := images_of(root, found.images, v)).is_video else None for v in videos}
    return rates.pop() if len(rates) == 1 else None


def counted_from_one(root: Path, found: Found, videos: Sequence[str]) -> bool:
    """Say whether the masks of video files count frames from 1: one has the number of the frame after the last."""
    for video in videos:
        images, masks = images_of(root, found.images, video), files_of(root, found.masks, video)
        if images.is_video and masks:
            last = max(frame_number(path.with_stem(name)) for name, path in masks.items())
            if last == len(images.by_number()):
                return True
    return False


def _by_time(video: str, frames: int) -> Split:
    first, second = max(1, frames * 3 // 5), max(2, frames * 4 // 5)
    if frames < 3:
        return {"train": [video]}
    parts = {"train": [0, first], "validation": [first, second], "test": [second, frames]}
    return {name: [{video: bounds}] for name, bounds in parts.items() if bounds[0] < bounds[1]}


def _rate(path: Path) -> float | None:
    if is_volume(path):
        return None
    from shared_components.data.video import opened, shown_stream

    with opened(path) as container:
        rate = shown_stream(container, path).average_rate
    return round(float(rate), 6) if rate else None


def _of_volumes(root: Path, found: Found, videos: Sequence[str]) -> Values:
    pixels, masks = Counter[Value](), Counter[Value]()
    count = labelled = 0
    turned = None
    for video in videos:
        path = placed(root, found.masks, video)
        volume = packed_volume(path, axes="header")
        pixels.update(volume.pixels)
        masks.update(volume.frames_with)
        count, labelled = count + len(volume.packed), labelled + len(volume.labelled)
        turned = turned or (None if lies_as_written(path) else path)
    return Values(False, pixels, masks, count, count - labelled, turned)


def _of_files(root: Path, found: Found, videos: Sequence[str], known: Collection[Value]) -> Values:
    paths, unlabelled = [], 0
    for video in videos:
        images, masks = images_of(root, found.images, video), files_of(root, found.masks, video)
        paths += list(masks.values())
        unlabelled += 0 if images.is_video else len(images.files.keys() - masks.keys())
    if not paths:
        where = placed(root, found.masks, videos[0])
        raise DataError(where, "holds no masks", "put them there (PNG), or correct --masks")
    with ThreadPoolExecutor(_THREADS) as threads:
        coloured = not all(threads.map(_is_numbers, paths[:: max(1, len(paths) // 32)]))
        counted = list(threads.map(partial(_counts, coloured=coloured, known=known), paths))
    pixels, masks_with = Counter[Value](), Counter[Value]()
    for one in counted:
        pixels.update(one)
        masks_with.update(one.keys())
    return Values(coloured, pixels, masks_with, len(paths), unlabelled)


def _is_numbers(path: Path) -> bool:
    """Say whether a mask is grey; of a palette, whose colours people see, they are meant."""
    colours = read_mask(path, coloured=True) if _has_8_bits(path) else np.zeros((1, 1, 3))
    return bool((colours == colours[:, :, :1]).all())


def _has_8_bits(path: Path) -> bool:
    try:
        return read_mask(path, coloured=False).dtype == np.uint8
    except DataError:
        return True  # in colours


def _counts(path: Path, *, coloured: bool, known: Collection[Value]) -> Mapping[Value, int]:
    return counts(read_mask(path, coloured=coloured, known=known), coloured=coloured)
