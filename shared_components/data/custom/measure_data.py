"""Measure what a new site.yaml needs: the values in the masks, the videos, their frame rate and numbering."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.counted import counted
from shared_components.data.custom.class_masks import masks_of, read_classes
from shared_components.data.custom.frame_names import Numbering, VideoMasks, guess_numbering, hashless_number
from shared_components.data.custom.guess_layout import FolderLayout
from shared_components.data.custom.ids import Value, counts
from shared_components.data.custom.layout import files_of, images_of, is_volume, placed
from shared_components.data.custom.masks import edge_values, has_colour_palette, packed_volume, read_mask
from shared_components.data.files.images import DataError

_THREADS = 4  # decoding releases Python's lock
_MOST = 64  # maximum number of values in a table
_SOFT = 6  # minimum number of values for a search for smoothed edges
_COMPARED = 64  # masks that are searched for smoothed edges


@dataclass(frozen=True)
class Values:
    """Values in a folder's masks: numbers, colours, or words of binary masks."""

    coloured: bool
    pixels: Counter[Any]  # number of pixels by value
    masks: Counter[Any]  # number of masks by value
    count: int  # of masks
    unlabelled: int  # images without a mask, or frames of volumes without any label
    turned: Path | None = None  # a volume whose axes differ from those that SurgFL writes
    edges: int = 0  # number of values only on smoothed edges; with a threshold, `pixels` does not contain them

    def percent(self, value: Value) -> float:
        return 100 * self.pixels[value] / max(1, sum(self.pixels.values()))


def values_of(
    root: Path, layout: FolderLayout, videos: Sequence[str], *, threshold: float | None, known: Collection[Value]
) -> Values:
    """Read all masks of the videos.

    `threshold` is for smoothed edges, see `site_file.MEANINGS`; `known` values already have a name. DataError if a mask
    cannot be read, there are no masks, or they contain too many values for a table.
    """
    if layout.kind == "nifti":
        values = _of_volumes(root, layout, videos)
    else:
        values = _of_files(root, layout, videos, threshold, known)
    if len(values.pixels) > _MOST and not values.edges:
        kind = f"{'colours' if values.coloured else 'values'} in {counted(values.count, 'mask')}"
        what = f"has {len(values.pixels)} {kind}, too many to name"
        remedy = "export the masks without smoothing, anti-aliasing or compression"
        raise DataError(placed(root, layout.masks, videos[0]), what, remedy)
    return values


def video_rate(root: Path, layout: FolderLayout, videos: Sequence[str]) -> float | None:
    """Return the frames per second of the video files if all have the same rate; None for folders of images."""
    rates = {_rate(images.path) if (images := images_of(root, layout.images, v)).is_video else None for v in videos}
    return rates.pop() if len(rates) == 1 else None


def numbering_of(root: Path, layout: FolderLayout, videos: Sequence[str]) -> Numbering | None:
    """Return the numbering of the masks of video files; None for other data."""
    from shared_components.data.files.video import frame_seconds

    masks: dict[str, VideoMasks] = {}
    for video in videos:
        images = images_of(root, layout.images, video, layout.masks)
        if not images.is_video or is_volume(images.path):
            continue
        numbers = sorted(hashless_number(path, name) for name, path in files_of(root, layout.masks, video).items())
        if numbers and (rate := _rate(images.path)):
            masks[video] = VideoMasks(numbers, frame_seconds(images.path), rate)
    return guess_numbering(masks) if masks else None


def _rate(path: Path) -> float | None:
    if is_volume(path):
        return None
    from shared_components.data.files.video import opened, shown_stream

    with opened(path) as container:
        rate = shown_stream(container, path).average_rate
    return round(float(rate), 6) if rate else None


def _of_volumes(root: Path, layout: FolderLayout, videos: Sequence[str]) -> Values:
    pixels, masks = Counter[Value](), Counter[Value]()
    from shared_components.data.files.nifti import has_written_axes

    count = labelled = 0
    turned = None
    for video in videos:
        path = placed(root, layout.masks, video)
        volume = packed_volume(path, axes="header")
        pixels.update(volume.pixels)
        masks.update(volume.frames_with)
        count, labelled = count + len(volume.packed), labelled + len(volume.labelled)
        turned = turned or (None if has_written_axes(path) else path)
    return Values(False, pixels, masks, count, count - labelled, turned)


def _of_files(
    root: Path, layout: FolderLayout, videos: Sequence[str], threshold: float | None, known: Collection[Value]
) -> Values:
    frames: list[tuple[Path, ...]] = []
    unlabelled = 0
    for video in videos:
        images = images_of(root, layout.images, video, layout.masks)
        masks = masks_of(root, layout.masks, video, words=layout.words, images=images.files)
        frames += masks.values()
        unlabelled += 0 if images.is_video else len(images.files.keys() - masks.keys())
    if not frames:
        folder = placed(root, layout.masks, videos[0])
        raise DataError(folder, "contains no masks", "put them there (PNG), or correct --masks")
    if layout.words:
        tables = [_count_words(files, layout, threshold) for files in frames]
        return Values(False, *_sums(tables), len(frames), unlabelled)
    paths = [path for (path,) in frames]
    with ThreadPoolExecutor(_THREADS) as threads:
        sampled = paths[:: max(1, len(paths) // 32)]
        coloured = not all(threads.map(_is_grey, sampled))
        if coloured and known and all(isinstance(value, int) for value in known):
            coloured = not all(threads.map(has_colour_palette, sampled))  # the numbers are places of the palette
        read = partial(read_mask, coloured=coloured, known=known)
        pixels, masks_with = _sums(threads.map(lambda path: counts(read(path), coloured=coloured), paths))
    edges = None
    if len(pixels) >= _SOFT:
        edges = edge_values(map(read, paths[:: max(1, len(paths) // _COMPARED)]), coloured=coloured)
    if edges and threshold is not None:
        pixels = Counter({value: pixels[value] for value in edges[0]})
    return Values(coloured, pixels, masks_with, len(paths), unlabelled, edges=len(edges[1]) if edges else 0)


def _count_words(files: Sequence[Path], layout: FolderLayout, threshold: float | None) -> dict[Any, int]:
    places = {word: number for number, word in enumerate(layout.words, 1)}
    label = read_classes(files, layout.masks, places, threshold=threshold)
    return {word: int((label == place).sum()) for word, place in places.items()}


def _sums(tables: Iterable[Mapping[Any, int]]) -> tuple[Counter[Any], Counter[Any]]:
    """Return the number of pixels and of masks by value, given the pixels by value of each mask."""
    pixels, masks = Counter[Any](), Counter[Any]()
    for table in tables:
        pixels.update(table)
        masks.update(value for value, count in table.items() if count)
    return pixels, masks


def _is_grey(path: Path) -> bool:
    try:
        if read_mask(path, coloured=False).dtype != np.uint8:
            return True
    except DataError:  # the mask is in colours
        pass
    colours = read_mask(path, coloured=True)
    return bool((colours == colours[:, :, :1]).all())
