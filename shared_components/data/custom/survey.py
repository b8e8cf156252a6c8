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
from shared_components.data.custom.guess_layout import FolderLayout
from shared_components.data.custom.hashes import without_hash
from shared_components.data.custom.ids import Value, counts
from shared_components.data.custom.layout import files_of, images_of, is_volume, placed, video_names
from shared_components.data.custom.masks import packed_volume, read_mask
from shared_components.data.custom.numbering import Film, Numbering, guess_numbering
from shared_components.data.custom.smoothed import edge_values
from shared_components.data.files import DataError, frame_number
from shared_components.data.nifti import lies_as_written

_THREADS = 4  # decoding releases Python's lock
_MOST = 64  # values that can be a table
_SOFT = 6  # fewest values that may come from smoothed edges; fewer are named one by one
_COMPARED = 64  # masks that are searched for smoothed edges


@dataclass(frozen=True)
class Values:
    """What the masks hold.

    Attributes:
        pixels: of each value; values are colours if `coloured`, and words of binary masks, one per class.
        masks: how many masks hold each; `count`: of so many.
        unlabelled: images without a mask, or frames of volumes without any label.
        turned: a volume whose axes point otherwise than SurgFL writes them.
        edges: number of values found only on smoothed edges; with a threshold `pixels` leaves them out.
    """

    coloured: bool
    pixels: Counter[Any]
    masks: Counter[Any]
    count: int
    unlabelled: int
    turned: Path | None = None
    edges: int = 0

    def share(self, value: Value) -> float:
        """Return which share of all pixels has a value, in percent."""
        return 100 * self.pixels[value] / max(1, sum(self.pixels.values()))


def own_videos(root: Path, layout: FolderLayout) -> list[str]:
    """List the videos of a folder with this layout, in natural order."""
    return video_names(root, layout.images)


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
        threshold: of smoothed edges, see `description.Own`.
        known: values that somebody has named already.

    Raises:
        DataError: a mask cannot be read, there are none, or they hold too many values to be a table's.
    """
    if layout.kind == "nifti":
        surveyed = _of_volumes(root, layout, videos)
    else:
        surveyed = _of_files(root, layout, videos, threshold, known)
    if len(surveyed.pixels) > _MOST and not surveyed.edges:
        what = f"{'colours' if surveyed.coloured else 'values'} in {counted(surveyed.count, 'mask')}"
        raise DataError(
            placed(root, layout.masks, videos[0]),
            f"is of masks with {len(surveyed.pixels)} {what}, too many to name",
            "export the masks without smoothing, anti-aliasing or compression",
        )
    return surveyed


def words_of(root: Path, layout: FolderLayout, videos: Sequence[str], threshold: float | None = None) -> Values:
    """Read all binary masks, one per class; the values are the words of their classes.

    Raises:
        DataError: a mask cannot be read, there are none, or masks of a frame share pixels.
    """
    pixels, masks = Counter[Any](), Counter[Any]()
    count = unlabelled = 0
    places = {word: number for number, word in enumerate(layout.words, 1)}
    for video in videos:
        images = images_of(root, layout.images, video, layout.masks)
        files = class_files(root, layout.masks, video, words=layout.words, images=images.files)
        for listed in files.values():
            label = read_classes(listed, layout.masks, places, threshold=threshold)
            here = {word: int((label == place).sum()) for word, place in places.items()}
            pixels.update(here)
            masks.update(word for word, number in here.items() if number)
        count, unlabelled = count + len(files), unlabelled + len(images.files.keys() - files.keys())
    if not count:
        raise DataError(placed(root, layout.masks, videos[0]), "holds no masks", "put them there (PNG)")
    return Values(False, pixels, masks, count, unlabelled)


def video_rate(root: Path, layout: FolderLayout, videos: Sequence[str]) -> float | None:
    """Return the frames per second of the video files, where they agree; None of folders of images."""
    rates = {_rate(images.where) if (images := images_of(root, layout.images, v)).is_video else None for v in videos}
    return rates.pop() if len(rates) == 1 else None


def numbering_of(root: Path, layout: FolderLayout, videos: Sequence[str]) -> Numbering | None:
    """Return the numbering of the masks of video files; None for other data."""
    from shared_components.data.video import frame_seconds

    films: dict[str, Film] = {}
    for video in videos:
        images = images_of(root, layout.images, video, layout.masks)
        if not images.is_video or is_volume(images.where):
            continue
        masks = files_of(root, layout.masks, video)
        numbers = sorted(frame_number(Path(f"{without_hash(name)}.png")) for name in masks)
        if numbers and (rate := _rate(images.where)):
            films[video] = Film(numbers, frame_seconds(images.where), rate)
    return guess_numbering(films) if films else None


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
        masks = files_of(root, layout.masks, video)
        paths += list(masks.values())
        unlabelled += 0 if images.is_video else len(images.files.keys() - masks.keys())
    if not paths:
        where = placed(root, layout.masks, videos[0])
        raise DataError(where, "holds no masks", "put them there (PNG), or correct --masks")
    with ThreadPoolExecutor(_THREADS) as threads:
        coloured = not all(threads.map(_is_numbers, paths[:: max(1, len(paths) // 32)]))
        tables = list(threads.map(partial(_counts, coloured=coloured, known=known), paths))
    pixels, masks_with = Counter[Value](), Counter[Value]()
    for one in tables:
        pixels.update(one)
        masks_with.update(one.keys())
    edges = _edges(paths, coloured, len(pixels), known)
    if edges is not None and threshold is not None:
        areas, _ = edges
        pixels = Counter({value: pixels[value] for value in areas})
    return Values(coloured, pixels, masks_with, len(paths), unlabelled, edges=len(edges[1]) if edges else 0)


def _edges(
    paths: Sequence[Path], coloured: bool, values: int, known: Collection[Value]
) -> tuple[list[Value], list[Value]] | None:
    """Return the values of areas and of smoothed edges, see `edge_values`, by some of the masks."""
    if values < _SOFT:
        return None
    chosen = paths[:: max(1, len(paths) // _COMPARED)]
    return edge_values((read_mask(path, coloured=coloured, known=known) for path in chosen), coloured=coloured)


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
