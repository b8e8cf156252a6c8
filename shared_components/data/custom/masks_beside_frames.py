"""Find masks beside frames, so that a folder to be segmented does not count them as frames."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shared_components.data.custom.frame_names import frame_span
from shared_components.data.custom.list_files import Scan
from shared_components.data.files.images import DataError, decode

_MASK_WORD = re.compile(
    r"(?<![a-z])(masks?|labels?|seg(mentation)?s?|gt|annotations?|truth|groundtruth)(?![a-z])", re.I
)
_SAMPLED = 3


@dataclass(frozen=True)
class _Group:
    """Images of a folder whose names differ only in numbers."""

    folder: str
    names: Sequence[str]
    flat: bool  # few values, as in masks

    @property
    def named_masks(self) -> bool:
        """Whether the folder's name or the images' names contain a word for masks."""
        return bool(_MASK_WORD.search(f"{self.folder}/{_without_frame(self.names[0])}"))

    @property
    def frames(self) -> set[str]:
        return {_frame(name) for name in self.names}


def masks_beside(files: Scan) -> set[str]:
    """Return the paths of images that are masks of other images, or of videos, in the same folder or below it.

    Such images have few values or a name for masks, and most have a frame's number or name. If a folder contains only
    masks, the result is empty.
    """
    groups = [*_groups(files.frames, flat=False), *_groups(files.masks, flat=True)]
    frame_groups = [group for group in groups if not group.named_masks and not group.flat]
    if not frame_groups:
        frame_groups = [group for group in groups if not group.named_masks]
    frames = set().union(*(group.frames for group in frame_groups))
    masks = [group for group in groups if group not in frame_groups and _are_masks_of(group, frames, files)]
    return {f"{group.folder}/{name}".lstrip("/") for group in masks for name in group.names}


def _are_masks_of(group: _Group, frames: set[str], files: Scan) -> bool:
    """Return whether a group has masks of the frames, by their common names, or masks of videos."""
    if not frames:
        return bool(files.videos)
    if 2 * len(group.frames & frames) < len(group.frames):
        return False
    return group.named_masks or not _are_dark(group, files)


def _are_dark(group: _Group, files: Scan) -> bool:
    """Return whether images have one value each, as frames have while the light is off."""
    for name in group.names[:: max(1, len(group.names) // _SAMPLED)]:
        try:
            image = decode(files.root / group.folder / name)[1]
        except DataError:
            continue
        if np.ptp(image):
            return False
    return True


def _groups(folders: Mapping[str, Sequence[str]], *, flat: bool) -> Iterator[_Group]:
    for folder, names in folders.items():
        alike: dict[str, list[str]] = defaultdict(list)
        for name in names:
            alike[re.sub(r"\d+", "0", _without_frame(name))].append(name)
        yield from (_Group(folder, group, flat) for group in alike.values())


def _without_frame(name: str) -> str:
    """Replace the frame in a name by a star: frame_0012_mask.png -> frame_*_mask.png."""
    stem, ending = os.path.splitext(name)
    start, end = frame_span(stem)
    return f"{stem[:start]}*{stem[end:]}{ending}" if (start, end) != (0, len(stem)) else name


def _frame(name: str) -> str:
    stem = os.path.splitext(name)[0]
    start, end = frame_span(stem)
    if (start, end) != (0, len(stem)) or stem.isdigit():
        return stem[start:end]
    return _MASK_WORD.sub("", stem).strip("_-. ")
