"""Measure what a new site.yaml needs: the values in the masks, the videos, their frame rate and numbering."""

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
from shared_components.data.custom.class_masks import class_files, read_classes
from shared_components.data.custom.frame_names import hashless_number
from shared_components.data.custom.guess_layout import FolderLayout
from shared_components.data.custom.ids import Value, counts
from shared_components.data.custom.layout import files_of, images_of, is_volume, placed
from shared_components.data.custom.masks import packed_volume, read_mask
from shared_components.data.custom.numbering import Numbering, VideoMasks, guess_numbering
from shared_components.data.custom.smoothed import edge_values
from shared_components.data.files import DataError
from shared_components.data.nifti import lies_as_written

_THREADS = 4  # decoding releases Python's lock
_MOST = 64  # maximum number of values in a table
_SOFT = 6  # minimum number of values for a search for smoothed edges
_COMPARED = 64  # masks that are searched for smoothed edges


@dataclass(frozen=True)
class Values:
    """Values in a folder's masks.

    Attributes:
        pixels: Number of pixels by value; values are numbers, colours, or words of binary masks.
        masks: Number of masks by value.
        count: Number of masks.
        unlabelled: Number of images without a mask, or of a volume's frames without any label.
        turned: A volume whose axes differ from those that SurgFL writes.
        edges: Number of values found only on smoothed edges; with a threshold, `pixels` does not contain them.
    """

    coloured: bool
    pixels: Counter[Any]
    masks: Counter[Any]
    count: int
    unlabelled: int
    turned: Path | None = None
    edges: int = 0

    def percent(self, value: Value) -> float:
        """Return the percentage of pixels that have a value."""
        return 100 * self.pixels[value] / max(1, sum(self.pixels.values()))


def values_of(
    root: Path,
    layout: FolderLayout,
    videos: Sequence[str],
    *,
    threshold: float | None = None,
    known: Collection[Value] = (),
) -> Values:
    """Read all masks of the videos.

    Args:
        threshold: Threshold for smoothed edges, see `description.MEANINGS`.
        known: Values that already have a name.

    Raises:
        DataError: A mask cannot be read, there are no masks, or they contain too many values for a table.
    """
    if layout.words:
        return _of_words(root, layout, videos, threshold)
    if layout.kind == "nifti":
        values = _of_volumes(root, layout, videos)
    else:
        values = _of_files(root, layout, videos, threshold, known)
    if len(values.pixels) > _MOST and not values.edges:
        kind = f"{'colours' if values.coloured else 'values'} in {counted(values.count, 'mask')}"
        raise DataError(
            placed(root, layout.masks, videos[0]),
            f"is of masks with {len(values.pixels)} {kind}, too many to name",
            "export the masks without smoothing, anti-aliasing or compression",
        )
    return values


def _of_words(root: Path, layout: FolderLayout, videos: Sequence[str], threshold: float | None) -> Values:
    pixels, masks = Counter[Any](), Counter[Any]()
    count = unlabelled = 0
    places = {word: number for number, word in enumerate(layout.words, 1)}
    for video in videos:
        images = images_of(root, layout.images, video, layout.masks)
        files = class_files(root, layout.masks, video, words=layout.words, images=images.files)
        for paths in files.values():
            label = read_classes(paths, layout.masks, places, threshold=threshold)
            sizes = {word: int((label == place).sum()) for word, place in places.items()}
            pixels.update(sizes)
            masks.update(word for word, size in sizes.items() if size)
        count, unlabelled = count + len(files), unlabelled + len(images.files.keys() - files.keys())
    if not count:
        raise DataError(placed(root, layout.masks, videos[0]), "holds no masks", "put them there (PNG)")
    return Values(False, pixels, masks, count, unlabelled)


def video_rate(root: Path, layout: FolderLayout, videos: Sequence[str]) -> float | None:
    """Return the frames per second of the video files if all have the same rate; None for folders of images."""
    rates = {_rate(images.path) if (images := images_of(root, layout.images, v)).is_video else None for v in videos}
    return rates.pop() if len(rates) == 1 else None


def numbering_of(root: Path, layout: FolderLayout, videos: Sequence[str]) -> Numbering | None:
    """Return the numbering of the masks of video files; None for other data."""
    from shared_components.data.video import frame_seconds

    masks: dict[str, VideoMasks] = {}
    for video in videos:
        images = images_of(root, layout.images, video, layout.masks)
        if not images.is_video or is_volume(images.path):
            continue
        files = files_of(root, layout.masks, video)
        numbers = sorted(hashless_number(path, name) for name, path in files.items())
        if numbers and (rate := _rate(images.path)):
            masks[video] = VideoMasks(numbers, frame_seconds(images.path), rate)
    return guess_numbering(masks) if masks else None


def _rate(path: Path) -> float | None:
    if is_volume(path):
        return None
    from shared_components.data.video import opened, shown_stream

    with opened(path) as container:
        rate = shown_stream(container, path).average_rate
    return round(float(rate), 6) if rate else None


def _of_volumes(root: Path, layout: FolderLayout, videos: Sequence[str]) -> Values:
    pixels, masks = Counter[Value](), Counter[Value]()
    count = labelled = 0
    turned = None
    for video in videos:
        path = placed(root, layout.masks, video)
        volume = packed_volume(path, axes="header")
        pixels.update(volume.pixels)
        masks.update(volume.frames_with)
        count, labelled = count + len(volume.packed), labelled + len(volume.labelled)
        turned = turned or (None if lies_as_written(path) else path)
    return Values(False, pixels, masks, count, count - labelled, turned)


def _of_files(
    root: Path, layout: FolderLayout, videos: Sequence[str], threshold: float | None, known: Collection[Value]
) -> Values:
    paths, unlabelled = [], 0
    for video in videos:
        images = images_of(root, layout.images, video, layout.masks)
        files = files_of(root, layout.masks, video)
        paths += list(files.values())
        unlabelled += 0 if images.is_video else len(images.files.keys() - files.keys())
    if not paths:
        folder = placed(root, layout.masks, videos[0])
        raise DataError(folder, "holds no masks", "put them there (PNG), or correct --masks")
    with ThreadPoolExecutor(_THREADS) as threads:
        coloured = not all(threads.map(_is_grey, paths[:: max(1, len(paths) // 32)]))
        tables = list(threads.map(partial(_counts, coloured=coloured, known=known), paths))
    pixels, masks = Counter[Value](), Counter[Value]()
    for table in tables:
        pixels.update(table)
        masks.update(table.keys())
    edges = None
    if len(pixels) >= _SOFT:
        some = (read_mask(p, coloured=coloured, known=known) for p in paths[:: max(1, len(paths) // _COMPARED)])
        edges = edge_values(some, coloured=coloured)
    if edges and threshold is not None:
        pixels = Counter({value: pixels[value] for value in edges[0]})
    return Values(coloured, pixels, masks, len(paths), unlabelled, edges=len(edges[1]) if edges else 0)


def _is_grey(path: Path) -> bool:
    """Return whether a mask is grey, by the colours of its palette if it has one."""
    try:
        if read_mask(path, coloured=False).dtype != np.uint8:
            return True
    except DataError:  # the mask is in colours
        pass
    colours = read_mask(path, coloured=True)
    return bool((colours == colours[:, :, :1]).all())


def _counts(path: Path, *, coloured: bool, known: Collection[Value]) -> Mapping[Value, int]:
    return counts(read_mask(path, coloured=coloured, known=known), coloured=coloured)
