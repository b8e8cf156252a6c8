"""List the data below a folder: frames, masks, videos, label volumes, and files of unread formats."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from shared_components.data.custom.hashes import find_hash
from shared_components.data.custom.smoothed import edge_values
from shared_components.data.files import (
    IMAGES,
    VIDEOS,
    VOLUMES,
    DataError,
    SeveralPictures,
    decode,
    folders_below,
    refuse_pointer,
)
from shared_components.data.nifti import holds_colours

UNREAD = (
    ".webp", ".gif", ".jp2", ".ppm", ".pgm", ".heic", ".heif", ".avif", ".exr", ".dcm", ".npy", ".npz", ".nrrd", ".mha",
    ".mhd", ".flv", ".mts", ".m2ts", ".vob", ".3gp", ".mxf", ".dv", ".ogv", ".h264", ".hevc",
)  # fmt: skip
"""File endings of images, videos and volumes that SurgFL does not read."""
_SAMPLED = 3  # images of a kind that tell whether they are masks
_FEW = 64  # a mask's values or colours; a photograph has thousands
_MOST_COMMON, _SHARE = 8, 0.85  # so few values are most of a mask with smoothed edges
_PIXELS = 20_000  # of an image that are looked at


@dataclass
class Scan:
    """The data below a folder, as paths relative to it.

    Attributes:
        frames, masks: names of image files by folder; `""` is the folder itself.
        videos: video files, and volumes of colours; `volumes`: label volumes.
        unread: files of formats that are not read.
    """

    root: Path
    frames: dict[str, list[str]] = field(default_factory=dict)
    masks: dict[str, list[str]] = field(default_factory=dict)
    videos: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def kinds(self) -> dict[str, str]:
        """Return the kind of every file by its path: images, masks, videos, label volumes or unread files."""
        found = {path: "images" for path in joined(self.frames)}
        found |= {path: "masks" for path in joined(self.masks)}
        found |= dict.fromkeys(self.videos, "video files") | dict.fromkeys(self.volumes, "label volumes")
        return found | dict.fromkeys(self.unread, "unread files")


def joined(folders: dict[str, list[str]]) -> Iterator[str]:
    """Yield the paths of files that are listed by folder."""
    for folder, names in folders.items():
        yield from (f"{folder}/{name}" if folder else name for name in names)


def scan(folder: Path) -> Scan:
    """List the data below a folder; hidden files, and folders that systems and archives add, are passed over.

    Raises:
        DataError: it is no folder, or holds Git LFS pointers in place of data.
    """
    if not folder.is_dir():
        raise DataError(folder, "is not a folder", "name the folder that holds the images and masks")
    found = Scan(folder)
    for path, names in folders_below(folder):
        below = "" if path == folder else path.relative_to(folder).as_posix()
        _add(found, path, below, names)
    return found


def _add(found: Scan, path: Path, below: str, names: Sequence[str]) -> None:
    prefix = f"{below}/" if below else ""
    images = [name for name in names if name.lower().endswith(IMAGES)]
    volumes = [name for name in names if name.lower().endswith(VOLUMES)]
    films = [name for name in names if name.lower().endswith(VIDEOS)]
    for name in (*images, *volumes, *films):
        refuse_pointer(path / name)
    found.videos += [prefix + name for name in films]
    found.unread += [prefix + name for name in names if name.lower().endswith(UNREAD)]
    for name in volumes:  # of frames in colour, or of labels
        (found.videos if holds_colours(path / name) else found.volumes).append(prefix + name)
    for names_alike in _alike(images):
        kind = found.masks if _are_masks(path, names_alike) else found.frames
        kind.setdefault(below, []).extend(names_alike)


def _alike(names: Sequence[str]) -> list[list[str]]:
    """Group names that differ only in numbers and hashes."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        start, end = frame_span(os.path.splitext(name)[0])
        groups[re.sub(r"\d+", "0", f"{name[:start]}*{name[end:]}")].append(name)
    return list(groups.values())


@lru_cache(maxsize=1 << 16)
def frame_span(stem: str) -> tuple[int, int]:
    """Return the position of the frame in a name: its last number, with the hash that an export added."""
    hashed = find_hash(stem)
    numbers = [
        match.span()
        for match in re.finditer(r"\d+", stem)
        if hashed is None or match.end() <= hashed.start() or match.start() >= hashed.end()
    ]
    spans = numbers[-1:] + ([] if hashed is None else [hashed.span()])
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else (0, len(stem))


def _are_masks(path: Path, names: Sequence[str]) -> bool:
    """Return whether images are masks, by a few of them."""
    chosen = [names[len(names) * (2 * k + 1) // (2 * _SAMPLED)] for k in range(_SAMPLED)]
    return all(is_mask(path / name) for name in dict.fromkeys(chosen))


def is_mask(path: Path) -> bool:
    """Return whether an image is a mask: it has few values or colours, or a few cover nearly all of it."""
    if (image := _lossless(path)) is None:
        return False
    pixels = image.reshape(-1, image.shape[2] if image.ndim == 3 else 1)
    _, counts = np.unique(pixels[:: max(1, len(pixels) // _PIXELS)], axis=0, return_counts=True)
    return len(counts) <= _FEW or np.sort(counts)[-_MOST_COMMON:].sum() >= _SHARE * counts.sum()


def is_binary(path: Path) -> bool:
    """Return whether a mask has two values, apart from values on smoothed edges."""
    if (image := _lossless(path)) is None:
        return False
    grey = image if image.ndim == 2 else image[:, :, 0]
    if len(np.unique(grey)) <= 2:
        return True
    found = edge_values([grey], coloured=False) if grey.dtype in (np.uint8, np.uint16) else None
    return found is not None and len(found[0]) <= 2


def _lossless(path: Path) -> np.ndarray | None:
    """Read an image as it is; return None for JPEG and unreadable files. A file of several pictures raises."""
    try:
        data, image = decode(path)
    except SeveralPictures:  # nobody can tell before the file is taken apart
        raise
    except DataError:
        return None
    return None if data.startswith(b"\xff\xd8\xff") else image
