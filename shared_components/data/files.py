"""Read images and label files strictly: nothing half-read, nothing guessed.

Every error is a `DataError`, whose message begins with the file and ends with what to do.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np

from shared_components.common.counted import counted
from shared_components.common.git_lfs import WHAT as LFS_POINTER
from shared_components.common.git_lfs import WHAT_TO_DO as LFS_PULL
from shared_components.common.git_lfs import is_pointer, is_pointer_file
from shared_components.common.plain_yaml import YamlError, read_yaml
from shared_components.data.image_headers import JPEG, PNG, is_transparent, read_header

Size = tuple[int, int]  # height, width

DEPTH_SCALE = 256  # of a depth file's values, per millimetre
_UNKNOWN = 254  # 255 are pixels of no class
MOST_PIXELS = 1 << 26
"""Of an image or of a frame of a volume, 8192 x 8192: twice as many as 8K has. A file of 100 kB can hold a billion."""
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".mpg", ".mpeg", ".ts", ".m4v", ".webm", ".wmv")
"""Endings by which a folder of videos is known; a file of any other may be a video as well."""
VOLUMES = (".nii.gz", ".nii")
_NO_DATA = (
    "__MACOSX", "lost+found", "$RECYCLE.BIN", "System Volume Information", "@eaDir", "#recycle", "#snapshot",
)  # folders that archives, disks and file servers bring  # fmt: skip
MOST_YAML = 1 << 20  # bytes
Axes = Literal["header", "stored"]
"""Which way a volume's axes point: as its header says, or x, y, t as they are stored, whatever it says."""
DAMAGED = ("is not a readable image (empty, cut off or damaged)", "copy the file again")
MISSING = ("file is missing", "put it back or take the video out of the split")


class DataError(ValueError):
    """A file of a dataset is missing or is not what it should be: which file, what is wrong, what to do."""

    def __init__(self, file: Path, what: str, what_to_do: str) -> None:
        super().__init__(f"{file}: {what}; {what_to_do}")
        self.file = file
        self.what = what
        self.what_to_do = what_to_do


class SeveralPictures(DataError):
    """An image file holds several pages or frames, and a reader would take only the first."""

    def __init__(self, file: Path, pictures: int) -> None:
        remedy = f"export every one as an image of its own, such as with `magick {file.name} {file.stem}_%04d.png`"
        super().__init__(file, f"holds {pictures} pages or frames in one image file", remedy)


def read_yaml_file(path: Path, *, error: type[Exception]) -> Any:
    """Read a YAML file of any origin, see `read_yaml`; ``error`` names the file and what to do.

    FileNotFoundError passes: what it means is another thing for each file.
    """
    try:
        return read_yaml(read_text(path, MOST_YAML))
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path}: cannot be read ({problem}); check the file") from problem
    except DataError as problem:
        raise error(str(problem)) from problem
    except YamlError as problem:
        raise error(f"{path}: {problem}") from problem


def read_rgb(path: Path) -> np.ndarray:
    """Read a colour frame as uint8 (H, W, 3) RGB, turned by its EXIF orientation."""
    data, image = decode(path, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if image.dtype != np.uint8:  # OpenCV would keep the upper bits: of 12 in 16 nearly nothing
        raise DataError(path, f"holds {image.dtype} values", "export the frames with 8 bits per channel")
    if is_transparent(data):
        what = "has transparent pixels, which one program shows black, another white and a third as they are stored"
        raise DataError(path, what, "export the frames without transparency")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def read_colours(path: Path) -> np.ndarray:
    """Read a colour-coded label as uint8 (H, W, 3) RGB; an alpha channel is left out."""
    label = decode_label(path)[1]
    if label.ndim != 3 or label.shape[2] < 3 or label.dtype != np.uint8:
        raise DataError(path, "is not an 8-bit RGB or RGBA label", "export the colour-coded label again")
    return np.ascontiguousarray(label[:, :, 2::-1])


def read_ids(path: Path) -> np.ndarray:
    """Read a label of grey ids, in one channel or in three equal ones, as uint8 (H, W)."""
    label = decode_label(path)[1]
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
    depth = decode(path)[1]
    if depth.dtype != np.uint16 or depth.ndim != 2:
        what = f"holds {depth.dtype} values of shape {depth.shape}"
        raise DataError(
            path, what, f"export the depth again: one channel of 16 bits, {DEPTH_SCALE} per millimetre, 0 unknown"
        )
    return depth.astype(np.float32) / DEPTH_SCALE


def refuse_pointer(path: Path, data: bytes | None = None) -> None:
    """Raise a DataError where a file, or the ``data`` read of it, is a pointer that Git LFS has left in its place."""
    if is_pointer_file(path) if data is None else is_pointer(data):
        raise DataError(path, LFS_POINTER, LFS_PULL)


def refuse_special(path: Path) -> None:
    """Raise a DataError where a path is a pipe, a socket or a device, which reading would wait for without end.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(path, "is a pipe, a socket or a device", "put an ordinary file in its place")


def read_text(path: Path, most: int, *, errors: str = "strict") -> str:
    """Read a text file in UTF-8 of at most so many bytes.

    Raises:
        DataError: it is larger, or no ordinary file.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8, and `errors` is "strict".
    """
    refuse_special(path)
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DataError(path, f"is larger than {most} bytes", "shorten it, or correct the path")
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors).read()


def refuse_large(path: Path, size: Size) -> None:
    """Raise a DataError where a picture of (H, W) has more pixels than `MOST_PIXELS`, before it is unpacked."""
    H, W = size
    if H * W > MOST_PIXELS:
        raise DataError(path, f"is {W}x{H}, of which this reads at most {MOST_PIXELS} pixels", "export it smaller")


def read_npy(path: Path) -> np.ndarray:
    """Read one uint8 array; arrays of objects (pickles) are refused."""
    try:
        refuse_special(path)
        refuse_pointer(path)
        array = np.array(np.lib.format.open_memmap(path, mode="r"))  # no more than the file has
    except FileNotFoundError:
        raise DataError(path, *MISSING) from None
    except DataError:
        raise
    except (OSError, ValueError, EOFError, MemoryError) as error:
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


def map_colours(
    label: np.ndarray, table: Mapping[tuple[int, int, int], int], *, path: Path, allowed: str
) -> np.ndarray:
    """Translate a dataset's colours, uint8 RGB (H, W, 3), to canonical ids (H, W), as `map_ids` does numbers."""
    canonical = np.zeros(label.shape[:2], dtype=np.uint8)
    known = np.zeros_like(canonical)
    for colour, place in table.items():
        here = np.asarray(cv2.inRange(label, colour, colour), dtype=np.uint8)  # 255 where it is this colour
        known |= here
        canonical |= here & np.uint8(place)
    if not known.all():
        row, column = np.argwhere(known == 0)[0]
        found = tuple(label[row, column].tolist())
        pixels = counted(int((known == 0).sum()), "such pixel")
        what = f"holds the unknown colour {found} at row {row}, column {column} ({pixels})"
        raise DataError(path, what, f"correct the mask: {allowed}")
    return canonical


def refuse_other_size(what: str, size: Size, path: Path, *, image_size: Size, image_path: Path) -> None:
    """Raise a DataError that names the file, "mask" or "depth", if its (H, W) are not its image's."""
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
        children = sorted(path for path in root.iterdir() if path.is_dir() and path.name not in _NO_DATA)
        holds = {child: holds_video(child) for child in children}
        folders = [child for child in children if not holds[child]]
        below = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir() and holds_video(path)]
    except OSError as error:
        where, remedy = Path(error.filename or root), "mount it or correct 'root', and check its rights"
        raise DataError(where, f"cannot be listed ({error.strerror})", remedy) from error
    for path in [*filter(holds.get, children), *below]:
        if path.name in found:
            raise DataError(
                root,
                f"holds two videos named {path.name!r} ({found[path.name]} and {path})",
                "set 'root' one level deeper or rename one",
            )
        found[path.name] = path
    return {name: found[name] for name in sorted(found, key=natural_order)}


def folders_below(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder with its files, both in natural order, without hidden ones and folders of systems.

    Links to folders are followed, and no folder is given twice.
    """
    seen: set[str] = set()
    for folder, below, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            below.clear()
            continue
        seen.add(real)
        shown = [name for name in below if not name.startswith(".") and name not in _NO_DATA]
        # a folder before a link to it, which may lead elsewhere tomorrow
        shown.sort(key=lambda name: (os.path.islink(os.path.join(folder, name)), natural_order(name)))
        below[:] = shown
        yield Path(folder), sorted((name for name in files if not name.startswith(".")), key=natural_order)


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
                raise DataError(path, f"has the same frame number as {files[number].name}", "remove one of them")
            files[number] = path
        if files:
            return files
    return {}


def decode(path: Path, flags: int = cv2.IMREAD_UNCHANGED) -> tuple[bytes, np.ndarray]:
    """Read an image file as it is: its bytes, and (H, W) or (H, W, C), blue first, of the file's own type.

    OpenCV's flags ask for another type or other channels than the file's.
    """
    try:
        refuse_special(path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(path, *MISSING) from None
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "check its rights") from error
    refuse_pointer(path, data)
    _refuse_header(path, data)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:  # it has a bound of its own, of files that Pillow does not know
        image = None
    if image is None:
        raise DataError(path, *DAMAGED)
    return data, image


def decode_label(path: Path) -> tuple[bytes, np.ndarray]:
    """Read a label file as `decode` does; refuse a TIFF whose numbers programs read in two ways."""
    data, label = decode(path)
    if not data.startswith((JPEG, PNG)) and read_header(data).min_is_white:
        what = (
            "is a TIFF with the photometric interpretation MinIsWhite: one program reads 0 as 0, another as the maximum"
        )
        raise DataError(
            path, what, "export the label again as PNG from the program that made it, and compare its values"
        )
    return data, label


def is_there(path: Path) -> bool:
    """Say whether a file is there, or the file that a frame is in: video.mp4/000012."""
    return path.is_file() or path.parent.is_file()


def _refuse_header(path: Path, data: bytes) -> None:
    """Refuse a file that is cut off, too large or of several pictures; decoders return a part without complaint."""
    try:
        header = read_header(data)
    except ValueError as error:
        raise DataError(path, f"is too large to be read ({error})", "export it smaller") from error
    if not header.complete or (header.size is None and data.startswith((JPEG, PNG))):
        raise DataError(path, *DAMAGED)
    if header.size is not None:
        refuse_large(path, header.size)
    if header.pictures > 1:
        raise SeveralPictures(path, header.pictures)
