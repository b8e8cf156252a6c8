"""List binary masks, one per class and frame, and merge them to a label map."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from shared_components.data.custom.description import CLASS
from shared_components.data.custom.layout import file_pattern, files_of, of_video
from shared_components.data.custom.list_files import is_binary
from shared_components.data.custom.masks import read_mask
from shared_components.data.files.images import IMAGES, DataError, folders_below

_ONE_PIXEL = 1.25  # maximum sum of two classes' shares of a pixel on a smoothed edge between them


Masks = dict[str, tuple[Path, ...]]
"""Mask files of each frame, by frame name."""


def masks_of(root: Path, template: str, video: str, *, words: Sequence[str], images: Mapping[str, Path]) -> Masks:
    """Return the mask of each frame of a video, or its masks in the order of `words`, which replace {class}.

    `images` are the video's images by frame name. A mask with a class that is not in `words` raises DataError.
    """
    if not words:
        return {name: (path,) for name, path in files_of(root, template, video).items()}
    template = of_video(template, video)
    pattern = file_pattern(template, words)
    masks: dict[str, dict[str, Path]] = defaultdict(dict)
    others: list[Path] = []
    for path in _files(root, template, set(images.values())):
        if match := pattern.fullmatch(path.relative_to(root).as_posix()):
            masks[match["frame"]][match["class"].lower()] = path
        else:
            others.append(path)
    _refuse_unnamed(root, template, others, images)
    order = {word.lower(): place for place, word in enumerate(words)}
    return {
        frame: tuple(files[word] for word in sorted(files, key=order.__getitem__)) for frame, files in masks.items()
    }


def _files(root: Path, template: str, images: Collection[Path]) -> Iterator[Path]:
    """Yield the image files below the folders of a template, up to the first part with a placeholder."""
    parts = template.split("/")
    fixed = next(number for number, part in enumerate(parts) if "*" in part or CLASS in part)
    for folder, names in folders_below(root / "/".join(parts[:fixed])):
        paths = (folder / name for name in names)
        yield from (path for path in paths if path.suffix.lower() in IMAGES and path not in images)


def _refuse_unnamed(root: Path, template: str, others: Sequence[Path], images: Mapping[str, Path]) -> None:
    """Refuse binary masks of a class without a name in `ids`; ignore other files."""
    tested: set[str] = set()
    for path in others:
        name = path.relative_to(root).as_posix()
        frame = max((frame for frame in images if frame in name), key=len, default="")
        match = file_pattern(template, frame=frame).fullmatch(name) if frame else None
        if match is None or match["class"] in tested:
            continue
        tested.add(word := match["class"])
        if is_binary(path):
            what = f"is a mask of class {word!r}, which 'ids' of site.yaml does not name"
            raise DataError(path, what, f"name it there, such as '{word}: {word}', or move its masks away")


def read_classes(
    files: Sequence[Path], template: str, places: Mapping[str, int], *, threshold: float | None
) -> np.ndarray:
    """Merge a frame's binary masks to uint8 (H, W) ids of the classes in `places`, by word; 0 without a mask.

    `threshold` is the minimum share of a smoothed pixel that belongs to the class; None refuses smoothed masks.
    DataError if a mask has more than two values, another size than the first mask, or overlaps another mask.
    """
    pattern = _path_pattern(template, tuple(places))
    class_of = {word.lower(): number for word, number in places.items()}
    first = _shares(files[0], threshold)
    label, most = np.zeros(first.shape, np.uint8), np.zeros(first.shape, np.float32)
    for path in files:
        share = _shares(path, threshold)
        if share.shape != label.shape:
            raise DataError(path, f"has another size than {files[0].name}", "export all masks of a frame at one size")
        inside = share >= (threshold or 1)
        if shared := int((inside & (most > 0) & (share + most > _ONE_PIXEL)).sum()):
            what = f"shares {shared:,} pixels with the masks of other classes of the same frame"
            raise DataError(path, what, "leave every pixel to one class, and export the masks again")
        inside &= share > most
        match = pattern.fullmatch(path.as_posix())
        label[inside], most[inside] = class_of[match["class"].lower()] if match else 0, share[inside]
    return label


def _shares(path: Path, threshold: float | None) -> np.ndarray:
    """Return the share of each pixel that belongs to a mask's class, float32 (H, W) from 0 to 1."""
    values = read_mask(path, coloured=False)
    if threshold is not None:
        most = int(values.max())  # a full pixel has the value 1, or the largest of its type
        return values.astype(np.float32) / (1 if most <= 1 else 255 if most <= 255 else 65_535)
    unique = np.unique(values)
    if len(unique) > 2 or (len(unique) == 2 and unique[0] != 0):
        what = f"is a mask of one class with {len(unique)} values, from {unique[0]} to {unique[-1]}"
        remedy = "export it without smoothed edges, or set the minimum share of a pixel that counts: --threshold 0.5"
        raise DataError(path, what, f"{remedy}, or 'threshold: 0.5' in site.yaml")
    return (values > 0).astype(np.float32)


@lru_cache(maxsize=64)
def _path_pattern(template: str, words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"(?:.*/)?{file_pattern(template, words).pattern}", re.IGNORECASE)
