"""Binary masks, one per class: list their files by frame, and join them to a label map."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from shared_components.data.custom.description import CLASS
from shared_components.data.custom.layout import file_pattern, of_video
from shared_components.data.custom.masks import read_mask
from shared_components.data.custom.scan import is_binary
from shared_components.data.files import IMAGES, DataError, folders_below

AGAIN = (
    "export it without smoothed edges, or set a threshold, the share from which on a pixel counts (--threshold 0.5, or "
    "'threshold: 0.5' in site.yaml)"
)
_ONE_PIXEL = 1.25  # shares of two classes in a pixel on a smoothed edge between them are no more than this


def class_files(
    root: Path, template: str, video: str, *, words: Sequence[str], images: Mapping[str, Path]
) -> dict[str, tuple[Path, ...]]:
    """List the masks of each frame of a video, in the order of ``words``.

    Args:
        template: holds {class}, which is replaced by one of ``words``.
        images: the video's images by the names of their frames.

    Raises:
        DataError: a mask has another class than ``words``.
    """
    there = of_video(template, video)
    pattern = file_pattern(there, words)
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    others: list[Path] = []
    order = {word.lower(): place for place, word in enumerate(words)}
    for path in _files(root / _fixed(there), set(images.values())):
        if match := pattern.fullmatch(path.relative_to(root).as_posix()):
            found[match["frame"]][match["class"].lower()] = path
        else:
            others.append(path)
    _refuse_unnamed(root, there, others, images)
    return {
        frame: tuple(masks[word] for word in sorted(masks, key=order.__getitem__)) for frame, masks in found.items()
    }


def _files(folder: Path, images: Collection[Path]) -> list[Path]:
    paths = [path / name for path, names in folders_below(folder) for name in names]
    return [path for path in paths if path.suffix.lower() in IMAGES and path not in images]


def _fixed(template: str) -> str:
    """Return the folders of a template before the first part with a placeholder."""
    parts = template.split("/")
    place = next(number for number, part in enumerate(parts) if "*" in part or CLASS in part)
    return "/".join(parts[:place])


def _refuse_unnamed(root: Path, template: str, others: Sequence[Path], images: Mapping[str, Path]) -> None:
    """Refuse binary masks of a class without a name in `ids`; other files are passed over."""
    seen: set[str] = set()
    for path in others:
        name = path.relative_to(root).as_posix()
        frame = max((frame for frame in images if frame in name), key=len, default="")
        match = file_pattern(template, frame=frame).fullmatch(name) if frame else None
        if match is None or match["class"] in seen:
            continue
        seen.add(word := match["class"])
        if is_binary(path):
            what = f"is a mask of class {word!r}, which 'ids' of site.yaml does not name"
            raise DataError(path, what, f"name it there, such as '{word}: {word}', or move its masks away")


def read_classes(
    files: Sequence[Path], template: str, places: Mapping[str, int], *, threshold: float | None
) -> np.ndarray:
    """Join binary masks, one per class, to uint8 (H, W) class ids; pixels of no mask are 0.

    Args:
        places: class id of each word that replaces {class}.
        threshold: least share of a smoothed pixel that belongs to the class; None: smoothed masks are refused.

    Raises:
        DataError: a mask has more than two values, another size than the first, or shares pixels with another.
    """
    pattern = _path_pattern(template, tuple(places))
    place_of = {word.lower(): place for word, place in places.items()}
    first = _shares(files[0], threshold)
    label, most = np.zeros(first.shape, np.uint8), np.zeros(first.shape, np.float32)
    for path in files:
        share = _shares(path, threshold)
        if share.shape != label.shape:
            raise DataError(path, f"has another size than {files[0].name}", "export all masks of a frame at one size")
        here = share >= (threshold or 1)
        if shared := int((here & (most > 0) & (share + most > _ONE_PIXEL)).sum()):
            what = f"shares {shared:,} pixels with the masks of other classes of the same frame"
            raise DataError(path, what, "leave every pixel to one class, and export the masks again")
        here &= share > most
        match = pattern.fullmatch(path.as_posix())
        label[here], most[here] = place_of[match["class"].lower()] if match else 0, share[here]
    return label


def _shares(path: Path, threshold: float | None) -> np.ndarray:
    """Return the share of each pixel that belongs to a mask's class, float32 (H, W) from 0 to 1."""
    values = read_mask(path, coloured=False)
    if threshold is not None:
        most = int(values.max())  # a pixel that belongs to the class wholly has the largest value of the type, or 1
        return values.astype(np.float32) / (1 if most <= 1 else 255 if most <= 255 else 65_535)
    if len(found := np.unique(values)) > 2 or (len(found) == 2 and found[0] != 0):
        raise DataError(path, f"is a mask of one class with {len(found)} values, from {found[0]} to {found[-1]}", AGAIN)
    return (values > 0).astype(np.float32)


@lru_cache(maxsize=64)
def _path_pattern(template: str, words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"(?:.*/)?{file_pattern(template, words).pattern}", re.IGNORECASE)
