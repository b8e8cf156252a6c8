"""Read images and label files strictly: nothing half-read, nothing guessed.

Every error is a `DataError`, whose message begins with the file and ends with what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

Size = tuple[int, int]  # height, width

DEPTH_SCALE = 256  # of a depth file's values, per millimetre
_UNKNOWN = 255
# The last marker of a complete file; decoders return the top half of a cut file without complaint.
_ENDINGS = {b"\x89PNG": b"IEND", b"\xff\xd8\xff": b"\xff\xd9"}
_TAIL_BYTES = 1024
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".mpg", ".mpeg", ".ts", ".m4v", ".webm", ".wmv")
"""Endings by which a folder of videos is known; a file of any other may be a video as well."""
VOLUMES = (".nii.gz", ".nii")
Axes = Literal["header", "stored"]
"""Which way a volume's axes point: as its header says, or x, y, t as they are stored, whatever it says."""
MISSING = ("file is missing", "put it back or take the video out of the split")


class DataError(ValueError):
    """A file of a dataset is missing or is not what it should be: which file, what is wrong, what to do."""

    def __init__(self, file: Path, what: str, what_to_do: str) -> None:
        super().__init__(f"{file}: {what}; {what_to_do}")
        self.file = file
        self.what = what
        self.what_to_do = what_to_do


def read_rgb(path: Path) -> np.ndarray:
    """Read a colour frame as uint8 (H, W, 3) RGB."""
    return cv2.cvtColor(_decode(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def read_colours(path: Path) -> np.ndarray:
    """Read a colour-coded label as uint8 (H, W, 3) RGB; an alpha channel is left out."""
    label = _decode(path, cv2.IMREAD_UNCHANGED)
    if label.ndim != 3 or label.shape[2] < 3 or label.dtype != np.uint8:
        raise DataError(path, "is not an 8-bit RGB or RGBA label", "export the colour-coded label again")
    return np.ascontiguousarray(label[:, :, 2::-1])


def read_ids(path: Path) -> np.ndarray:
    """Read a label of grey ids, in one channel or in three equal ones, as uint8 (H, W)."""
    label = _decode(path, cv2.IMREAD_UNCHANGED)
    if label.dtype != np.uint8:
        raise DataError(path, f"holds {label.dtype} values", "export the mask with 8 bits per pixel")
    if label.ndim == 2:
        return label
    first = label[:, :, 0]
    if not all(np.array_equal(first, label[:, :, channel]) for channel in (1, 2)):
        raise DataError(path, "is a colour image, not a mask of ids", "export one grey channel of ids")
    return np.ascontiguousarray(first)


def depth_values(depth: np.ndarray) -> np.ndarray:
    """Return depth in mm as a file holds it: uint16, `DEPTH_SCALE` per millimetre; undoes `read_depth`."""
    return np.round(np.clip(depth * DEPTH_SCALE, 0, np.iinfo(np.uint16).max)).astype(np.uint16)


def read_depth(path: Path) -> np.ndarray:
    """Read a 16-bit grey file of 256ths of a millimetre as float32 (H, W) mm; 0 = unknown.

    A file of 8 bits is refused: depth that was clipped to them cannot be had back.
    """
    depth = _decode(path, cv2.IMREAD_UNCHANGED)
    if depth.dtype != np.uint16 or depth.ndim != 2:
        what = f"holds {depth.dtype} values of shape {depth.shape}"
        raise DataError(
            path,
            what,
            f"export the depth again: one channel of 16 bits, {DEPTH_SCALE} per millimetre, 0 unknown",
        )
    return depth.astype(np.float32) / DEPTH_SCALE


def read_npy(path: Path) -> np.ndarray:
    """Read one uint8 array; arrays of objects (pickles) are refused."""
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(path, *MISSING) from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(path, f"cannot be read as .npy ({error})", "copy the file again") from error
    if array.dtype != np.uint8:
        raise DataError(path, f"holds {array.dtype} values", "write the array again as uint8")
    return array


def map_ids(label: np.ndarray, table: Mapping[int, int], *, path: Path, allowed: str) -> np.ndarray:
    """Translate a dataset's ids to canonical ids.

    Args:
        label: uint8 (H, W) with the dataset's ids.
        table: canonical id of every id the dataset may hold.
        allowed: what the dataset may hold, in words, for the error.

    Returns:
        uint8 (H, W) with canonical ids.

    Raises:
        DataError: the label holds an id that the table does not.
    """
    lookup = np.full(256, _UNKNOWN, dtype=np.uint8)
    lookup[list(table)] = list(table.values())
    canonical = np.asarray(cv2.LUT(np.ascontiguousarray(label), lookup), dtype=np.uint8)
    unknown = canonical == _UNKNOWN
    if unknown.any():
        ids = np.unique(label[unknown]).tolist()
        raise DataError(path, f"mask holds unknown ids {ids[:8]}", f"correct the mask: {allowed}")
    return canonical


def refuse_other_size(what: str, size: Size, path: Path, *, image_size: Size, image_path: Path) -> None:
    """Raise a DataError that names the file if it is not of its image's height and width.

    Args:
        what: "mask", "depth", ...: what the file is, for the error.
        size: (H, W) of the file at `path`.
    """
    if size != image_size:
        (H, W), (image_H, image_W) = size, image_size
        sizes = f"{what} is {W}x{H} but its image {image_path} is {image_W}x{image_H}"
        raise DataError(path, sizes, f"export the {what} at the size of its image")


def video_folders(root: Path, holds_video: Callable[[Path], bool]) -> dict[str, Path]:
    """Find the folders that hold a video, in `root` or one level below it (train1/, release_2/, ...).

    Returns:
        Path of every video by its folder's name, in natural order (2 before 10).
    """
    found: dict[str, Path] = {}
    try:
        children = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError as error:
        raise DataError(root, f"cannot be listed ({error.strerror})", "mount it or correct 'root'") from error
    below = [path for child in children if not holds_video(child) for path in sorted(child.iterdir())]
    for path in [*children, *below]:
        if path.is_dir() and holds_video(path):
            if path.name in found:
                raise DataError(
                    root,
                    f"holds two videos named {path.name!r} ({found[path.name]} and {path})",
                    "set 'root' one level deeper or rename one",
                )
            found[path.name] = path
    return {name: found[name] for name in sorted(found, key=natural_order)}


def natural_order(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key that puts video_2 before video_10."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name))


def frame_number(path: Path) -> int:
    """Return the last number in a file's name: frame012.png -> 12, img_07_raw.png -> 7."""
    numbers = re.findall(r"\d+", path.stem)
    if not numbers:
        raise DataError(path, "has no frame number in its name", "rename it or move it out of the folder")
    return int(numbers[-1])


def with_number(path: Path, number: int) -> Path:
    """Return the file beside another that has this frame number: (frame012.png, 7) -> frame007.png."""
    *_, last = re.finditer(r"\d+", path.stem)
    digits = f"{number:0{len(last[0])}d}"
    return path.with_name(f"{path.stem[: last.start()]}{digits}{path.stem[last.end() :]}{path.suffix}")


def spacing(numbers: Iterable[int]) -> int:
    """Return the largest step that all differences of frame numbers are multiples of; 0 for fewer than two."""
    ordered = sorted(numbers)
    return math.gcd(*(after - before for before, after in pairwise(ordered)))


def whole_steps(interval: float, rate: float) -> int:
    """Return an interval as a number of steps at a rate (per second); 0 where it is not a whole number of them."""
    steps = round(interval * rate)
    return steps if abs(interval * rate - steps) < 1e-6 else 0


def by_number(folder: Path, *patterns: str) -> dict[int, Path]:
    """List a folder's files by frame number, for the first of the patterns that matches any file."""
    for pattern in patterns:
        files: dict[int, Path] = {}
        for path in sorted(folder.glob(pattern)):
            if path.name.startswith("."):  # macOS archives hold a ._frame000.png beside frame000.png
                continue
            number = frame_number(path)
            if number in files:
                raise DataError(
                    path, f"has the same frame number as {files[number].name}", "remove one of them"
                )
            files[number] = path
        if files:
            return files
    return {}


def decode(path: Path) -> tuple[bytes, np.ndarray]:
    """Read an image file as it is: its bytes, and (H, W) or (H, W, C), blue first, of the file's own type."""
    data = _bytes(path)
    return data.tobytes(), _decoded(path, data, cv2.IMREAD_UNCHANGED)


def is_there(path: Path) -> bool:
    """Say whether a file is there, or the file that a frame is in: video.mp4/000012."""
    return path.is_file() or path.parent.is_file()


def _decode(path: Path, flags: int) -> np.ndarray:
    return _decoded(path, _bytes(path), flags)


def _bytes(path: Path) -> np.ndarray:
    try:
        return np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError:
        raise DataError(path, *MISSING) from None
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "check its rights") from error


def _decoded(path: Path, data: np.ndarray, flags: int) -> np.ndarray:
    image = cv2.imdecode(data, flags) if _is_complete(data) else None
    if image is None:
        raise DataError(path, "is not a readable image (empty, cut off or damaged)", "copy the file again")
    return image


def _is_complete(data: np.ndarray) -> bool:
    head, tail = data[:4].tobytes(), data[-_TAIL_BYTES:].tobytes()
    return data.size > 0 and all(
        ending in tail for start, ending in _ENDINGS.items() if head.startswith(start)
    )
