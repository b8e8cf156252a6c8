"""Find masks that lie beside frames, so that a folder to be segmented does not count them as frames."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shared_components.data.custom.scan import Scan, frame_span
from shared_components.data.files import DataError, decode

_CALLED = re.compile(r"(?<![a-z])(masks?|labels?|seg(mentation)?s?|gt|annotations?|truth|groundtruth)(?![a-z])", re.I)
_SAMPLED = 3


@dataclass(frozen=True)
class _Group:
    """Images of a folder with names that differ only in numbers."""

    folder: str
    names: Sequence[str]
    flat: bool  # with few values, as masks have

    @property
    def called_masks(self) -> bool:
        """Whether their folder, or their names, are called masks."""
        return bool(_CALLED.search(f"{self.folder}/{_affix(self.names[0])}"))

    @property
    def frames(self) -> set[str]:
        """Frames in their names."""
        return {_frame(name) for name in self.names}


def masks_beside(found: Scan) -> set[str]:
    """Return the paths of images that are masks of other images, or of videos, in the same folder or below it.

    They have few values, or are called masks, and most of them have a frame's number or name. A folder of masks only
    has no masks beside frames.
    """
    groups = [*_groups(found.frames, flat=False), *_groups(found.masks, flat=True)]
    frames = [group for group in groups if not group.called_masks and not group.flat]
    if not frames:
        frames = [group for group in groups if not group.called_masks]
    shown = set().union(*(group.frames for group in frames))
    masks = [group for group in groups if group not in frames and _are_of(group, shown, found)]
    return {f"{group.folder}/{name}".lstrip("/") for group in masks for name in group.names}


def _are_of(group: _Group, shown: set[str], found: Scan) -> bool:
    """Return whether a group has the masks of frames, by their common names, or the masks of videos."""
    if not shown:
        return bool(found.videos)
    if 2 * len(group.frames & shown) < len(group.frames):
        return False
    return group.called_masks or not _are_empty(group, found)


def _are_empty(group: _Group, found: Scan) -> bool:
    """Say whether images have one value each, as frames have while the light is off."""
    for name in group.names[:: max(1, len(group.names) // _SAMPLED)]:
        try:
            image = decode(found.root / group.folder / name)[1]
        except DataError:
            continue
        if np.ptp(image):
            return False
    return True


def _groups(folders: Mapping[str, Sequence[str]], *, flat: bool) -> Iterator[_Group]:
    for folder, names in folders.items():
        alike: dict[str, list[str]] = defaultdict(list)
        for name in names:
            alike[re.sub(r"\d+", "0", _affix(name))].append(name)
        yield from (_Group(folder, listed, flat) for listed in alike.values())


def _affix(name: str) -> str:
    """Return a name with a * for its frame: frame_0012_mask.png -> frame_*_mask.png."""
    stem, ending = os.path.splitext(name)
    start, end = frame_span(stem)
    return f"{stem[:start]}*{stem[end:]}{ending}" if (start, end) != (0, len(stem)) else f"{stem}{ending}"


def _frame(name: str) -> str:
    stem = os.path.splitext(name)[0]
    start, end = frame_span(stem)
    if (start, end) != (0, len(stem)) or stem.isdigit():
        return stem[start:end]
    return _CALLED.sub("", stem).strip("_-. ")
