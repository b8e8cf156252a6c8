"""List the data below a folder: frames, masks, videos, label volumes, and files in unsupported formats."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shared_components.data.custom.frame_names import frame_span
from shared_components.data.custom.masks import edge_values
from shared_components.data.files import images as files

UNSUPPORTED = (
    ".webp", ".gif", ".jp2", ".ppm", ".pgm", ".heic", ".heif", ".avif", ".exr", ".dcm", ".npy", ".npz", ".nrrd", ".mha",
    ".mhd", ".flv", ".mts", ".m2ts", ".vob", ".3gp", ".mxf", ".dv", ".ogv", ".h264", ".hevc",
)  # fmt: skip
INSTANCES = "instance masks"
_CLASSES, _OBJECTS = "SegmentationClass", "SegmentationObject"  # folders of Pascal VOC, and of CVAT's masks
_SAMPLED = 3  # images of a group that are tested
_FEW = 64  # maximum number of values in a mask; a photograph has thousands
_MOST_COMMON, _SHARE = 8, 0.85  # the eight most frequent values cover this share of a mask with smoothed edges
_PIXELS = 20_000  # pixels of an image that are tested


@dataclass
class Scan:
    """The data below a folder, as relative paths; images are listed by folder, "" is the folder itself."""

    root: Path
    frames: dict[str, list[str]] = field(default_factory=dict)
    masks: dict[str, list[str]] = field(default_factory=dict)
    videos: list[str] = field(default_factory=list)  # and volumes of colours
    volumes: list[str] = field(default_factory=list)  # of labels
    unread: list[str] = field(default_factory=list)  # in unsupported formats
    instances: list[str] = field(default_factory=list)  # masks of objects that CVAT writes beside masks of classes

    def kinds(self) -> dict[str, str]:
        """Return the kind of every file by its path."""
        kinds = dict.fromkeys(joined(self.frames), "images") | dict.fromkeys(joined(self.masks), "masks")
        kinds |= dict.fromkeys(self.videos, "video files") | dict.fromkeys(self.volumes, "label volumes")
        return kinds | dict.fromkeys(self.unread, "unread files") | dict.fromkeys(self.instances, INSTANCES)


def joined(folders: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the paths of files listed by folder."""
    return (f"{folder}/{name}".lstrip("/") for folder, names in folders.items() for name in names)


def scan(folder: Path) -> Scan:
    """List the data below a folder, without hidden files; DataError for no folder or Git LFS pointers."""
    if not folder.is_dir():
        raise files.DataError(folder, "is not a folder", "name the folder that contains the images and masks")
    data = Scan(folder)
    for path, names in files.folders_below(folder):
        _add(data, path, "" if path == folder else path.relative_to(folder).as_posix(), names)
    return data


def _add(data: Scan, path: Path, below: str, names: Sequence[str]) -> None:
    prefix = f"{below}/" if below else ""
    images, volumes, videos, unread = (
        [name for name in names if name.lower().endswith(endings)]
        for endings in (files.IMAGES, files.VOLUMES, files.VIDEOS, UNSUPPORTED)
    )
    for name in (*images, *volumes, *videos):
        files.refuse_pointer(path / name)
    above, objects, _ = f"/{below}/".partition(f"/{_OBJECTS}/")
    if objects and (data.root / above.strip("/") / _CLASSES).is_dir():
        data.instances += [prefix + name for name in images]
        images = []
    data.videos += [prefix + name for name in videos]
    # `surgfl masks` converts segmentations, and images without a mask are counted
    data.unread += [prefix + name for name in unread if not name.lower().endswith(files.SEGMENTATIONS)]
    if volumes:
        from shared_components.data.files.nifti import is_colour_volume  # nibabel takes 0.1 s to import

    for name in volumes:
        (data.videos if is_colour_volume(path / name) else data.volumes).append(prefix + name)
    for group in groups_of(images):
        chosen = [group[len(group) * (2 * k + 1) // (2 * _SAMPLED)] for k in range(_SAMPLED)]
        are_masks = all(is_mask(path / name) for name in dict.fromkeys(chosen))
        (data.masks if are_masks else data.frames).setdefault(below, []).extend(group)


def groups_of(names: Sequence[str]) -> list[list[str]]:
    """Group names that differ only in numbers and hashes."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        start, end = frame_span(os.path.splitext(name)[0])
        groups[re.sub(r"\d+", "0", f"{name[:start]}*{name[end:]}")].append(name)
    return list(groups.values())


def is_mask(path: Path) -> bool:
    """Return whether an image has few values or colours, or a few of them cover nearly all of it."""
    if (image := _lossless(path)) is None:
        return False
    pixels = image.reshape(-1, image.shape[2] if image.ndim == 3 else 1)
    _, counts = np.unique(pixels[:: max(1, len(pixels) // _PIXELS)], axis=0, return_counts=True)
    return len(counts) <= _FEW or np.sort(counts)[-_MOST_COMMON:].sum() >= _SHARE * counts.sum()


def is_binary(path: Path) -> bool:
    """Return whether a mask has two values, not counting values on smoothed edges."""
    if (image := _lossless(path)) is None:
        return False
    grey = image if image.ndim == 2 else image[:, :, 0]
    if len(np.unique(grey)) <= 2:
        return True
    values = edge_values([grey], coloured=False) if grey.dtype in (np.uint8, np.uint16) else None
    return values is not None and len(values[0]) <= 2


def _lossless(path: Path) -> np.ndarray | None:
    """Read an image unchanged; return None for JPEG and unreadable files."""
    try:
        data, image = files.decode(path)
    except files.SeveralPictures:  # an error that the user must resolve
        raise
    except files.DataError:
        return None
    return None if data.startswith(b"\xff\xd8\xff") else image
