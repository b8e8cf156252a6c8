"""Read images and label files strictly: a damaged or ambiguous file raises a `DataError`."""

import io
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
from shared_components.data.files.image_headers import JPEG, PNG, UPRIGHT, is_transparent, orientation, read_header

Size = tuple[int, int]  # height, width

DEPTH_SCALE = 256  # values of a depth file per millimetre
_UNKNOWN = 254  # 255 marks pixels that nobody labelled
MOST_PIXELS = 1 << 26  # of an image or frame, 8192 x 8192: a file of 100 kB can contain a billion pixels
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".mpg", ".mpeg", ".ts", ".m4v", ".webm", ".wmv")
"""Extensions that mark a folder of videos; files with other extensions may be videos, too."""
VOLUMES = (".nii.gz", ".nii")
SEGMENTATIONS = ".seg.nrrd"  # of 3D Slicer
_SYSTEM_FOLDERS = (
    "__MACOSX", "lost+found", "$RECYCLE.BIN", "System Volume Information", "@eaDir", "#recycle", "#snapshot",
)  # fmt: skip
Axes = Literal["header", "stored"]  # directions of a volume's axes: from its header, or x, y, t as stored
DAMAGED = ("is not a readable image (empty, cut off or damaged)", "copy the file again")
MISSING = ("file is missing", "put it back or take the video out of the split")


class DataError(ValueError):
    """Error in one file of a data set: the file, what is wrong, what to do."""

    def __init__(self, file: Path, what: str, what_to_do: str) -> None:
        super().__init__(f"{file}: {what}; {what_to_do}")
        self.file, self.what, self.what_to_do = file, what, what_to_do


class SeveralPictures(DataError):
    """An image file with several pages or frames: most programs read only the first."""

    def __init__(self, file: Path, pictures: int) -> None:
        remedy = f"export each to its own image file, for example with `magick {file.name} {file.stem}_%04d.png`"
        super().__init__(file, f"contains {pictures} pages or frames", remedy)


def read_yaml_file(path: Path, *, error: type[Exception]) -> Any:
    """Read an untrusted YAML file of at most 1 MiB; raise ``error`` with the path, or FileNotFoundError."""
    try:
        return read_yaml(read_text(path, 1 << 20))
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
    if image.dtype != np.uint8:  # OpenCV would keep the upper 8 bits: almost nothing of 12 bits in 16
        raise DataError(path, f"contains {image.dtype} values", "export the frames with 8 bits per channel")
    if is_transparent(data):
        what = "has transparent pixels, which programs show in different colours"
        raise DataError(path, what, "export the frames without transparency")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def read_colours(path: Path) -> np.ndarray:
    """Read a colour-coded label as uint8 (H, W, 3) RGB, without its alpha channel."""
    label = decode_label(path)[1]
    if label.ndim != 3 or label.shape[2] < 3 or label.dtype != np.uint8:
        raise DataError(path, "is not an 8-bit RGB or RGBA label", "export the colour-coded label again")
    return np.ascontiguousarray(label[:, :, 2::-1])


def read_ids(path: Path) -> np.ndarray:
    """Read a label of grey ids, in one channel or in three equal channels, as uint8 (H, W)."""
    label = decode_label(path)[1]
    if label.dtype != np.uint8:
        raise DataError(path, f"contains {label.dtype} values", "export the mask with 8 bits per pixel")
    if label.ndim == 2:
        return label
    first = label[:, :, 0]
    if not all(np.array_equal(first, label[:, :, channel]) for channel in (1, 2)):
        raise DataError(path, "is a colour image, not a mask of ids", "export one grey channel of ids")
    return np.ascontiguousarray(first)


def depth_values(depth: np.ndarray) -> np.ndarray:
    """Convert depth in mm to the values of a file: uint16, `DEPTH_SCALE` per millimetre; inverse of `read_depth`."""
    return np.round(np.clip(depth * DEPTH_SCALE, 0, np.iinfo(np.uint16).max)).astype(np.uint16)


def read_depth(path: Path) -> np.ndarray:
    """Read a 16-bit grey depth file as float32 (H, W) in mm; 0 is unknown. Refuse 8 bits, which clip depth."""
    depth = decode(path)[1]
    if depth.dtype != np.uint16 or depth.ndim != 2:
        remedy = f"export the depth again: one channel of 16 bits, {DEPTH_SCALE} per millimetre, 0 for unknown"
        raise DataError(path, f"contains {depth.dtype} values of shape {depth.shape}", remedy)
    return depth.astype(np.float32) / DEPTH_SCALE


def refuse_pointer(path: Path, data: bytes | None = None) -> None:
    """Raise a DataError if a file, or the ``data`` read from it, is a Git LFS pointer."""
    if is_pointer_file(path) if data is None else is_pointer(data):
        raise DataError(path, LFS_POINTER, LFS_PULL)


def refuse_special(path: Path) -> None:
    """Raise a DataError for a pipe, socket or device, which could block for ever; OSError if the path is missing."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(path, "is a pipe, a socket or a device", "put an ordinary file in its place")


def read_text(path: Path, most: int, *, errors: str = "strict") -> str:
    """Read a UTF-8 text file of at most ``most`` bytes; DataError for a larger or special file."""
    refuse_special(path)
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DataError(path, f"is larger than {most} bytes", "shorten it, or correct the path")
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors).read()


def refuse_large(path: Path, size: Size) -> None:
    """Raise a DataError if a picture (H, W) has more than `MOST_PIXELS` pixels; call it before decoding."""
    H, W = size
    if H * W > MOST_PIXELS:
        raise DataError(path, f"is {W}x{H}, more than {MOST_PIXELS} pixels", "export it smaller")


@contextmanager
def reading(path: Path, what: str, what_to_do: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors of reading an ordinary file into a DataError; ``what`` may contain {} for the error's text."""
    kinds: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        refuse_special(path)
        yield
    except FileNotFoundError:
        raise DataError(path, *MISSING) from None
    except DataError:
        raise
    except kinds as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(path, what.format(f"{reason:.120}"), what_to_do) from error


def read_npy(path: Path) -> np.ndarray:
    """Read a uint8 array; never unpickle objects."""
    with reading(path, "cannot be read as .npy ({})", "copy the file again", ValueError, EOFError, MemoryError):
        refuse_pointer(path)
        array = np.array(np.lib.format.open_memmap(path, mode="r"))  # takes no more memory than the file
    if array.dtype != np.uint8:
        raise DataError(path, f"contains {array.dtype} values", "write the array again as uint8")
    return array


def map_ids(label: np.ndarray, table: Mapping[int, int], *, path: Path, allowed: str) -> np.ndarray:
    """Translate a data set's ids, uint8 (H, W), to canonical ids; ``allowed`` describes the ids in the DataError."""
    lookup = np.full(256, _UNKNOWN, dtype=np.uint8)
    lookup[list(table)] = list(table.values())
    canonical = np.asarray(cv2.LUT(np.ascontiguousarray(label), lookup), dtype=np.uint8)
    unknown = canonical == _UNKNOWN
    if unknown.any():
        ids = np.unique(label[unknown]).tolist()
        raise DataError(path, f"mask has unknown ids {ids[:8]}", f"correct the mask: {allowed}")
    return canonical


def map_colours(
    label: np.ndarray, table: Mapping[tuple[int, int, int], int], *, path: Path, allowed: str
) -> np.ndarray:
    """Translate a data set's colours, uint8 RGB (H, W, 3), to canonical ids (H, W), as `map_ids` translates ids."""
    canonical = np.zeros(label.shape[:2], dtype=np.uint8)
    known = np.zeros_like(canonical)
    for colour, index in table.items():
        matches = np.asarray(cv2.inRange(label, colour, colour), dtype=np.uint8)  # 255 for pixels of this colour
        known |= matches
        canonical |= matches & np.uint8(index)
    if not known.all():
        row, column = np.argwhere(known == 0)[0]
        pixels = counted(int((known == 0).sum()), "such pixel")
        what = f"has the unknown colour {tuple(label[row, column].tolist())} at row {row}, column {column} ({pixels})"
        raise DataError(path, what, f"correct the mask: {allowed}")
    return canonical


def refuse_other_size(what: str, size: Size, path: Path, *, image_size: Size, image_path: Path) -> None:
    """Raise a DataError if the (H, W) of a file, "mask" or "depth", differ from its image's."""
    if size != image_size:
        (H, W), (image_H, image_W) = size, image_size
        sizes = f"{what} is {W}x{H} but its image {image_path} is {image_W}x{image_H}"
        raise DataError(path, sizes, f"export the {what} at the size of its image")


def video_folders(root: Path, holds_video: Callable[[Path], bool]) -> dict[str, Path]:
    """Find the folders with a video in `root` or one level below (train1/, ...), by name in natural order."""
    try:
        children = sorted(path for path in root.iterdir() if path.is_dir() and path.name not in _SYSTEM_FOLDERS)
        is_video = {child: holds_video(child) for child in children}
        parents = [child for child in children if not is_video[child]]
        below = [path for folder in parents for path in sorted(folder.iterdir()) if path.is_dir() and holds_video(path)]
    except OSError as error:
        folder, remedy = Path(error.filename or root), "mount it or correct 'root', and check its rights"
        raise DataError(folder, f"cannot be listed ({error.strerror})", remedy) from error
    videos: dict[str, Path] = {}
    for path in [*filter(is_video.get, children), *below]:
        if path.name in videos:
            what = f"has two videos named {path.name!r} ({videos[path.name]} and {path})"
            raise DataError(root, what, "set 'root' one level deeper or rename one")
        videos[path.name] = path
    return {name: videos[name] for name in sorted(videos, key=natural_order)}


def folders_below(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder once, following links, and its files, in natural order, without hidden and system ones."""
    visited: set[str] = set()
    for folder, below, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in visited:
            below.clear()
            continue
        visited.add(real)
        # a folder comes before a link to it, because the link may lead elsewhere tomorrow
        below[:] = sorted(
            (name for name in below if not name.startswith(".") and name not in _SYSTEM_FOLDERS),
            key=lambda name: (os.path.islink(os.path.join(folder, name)), natural_order(name)),
        )
        yield Path(folder), sorted((name for name in files if not name.startswith(".")), key=natural_order)


def natural_order(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that puts video_2 before video_10."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name))


def frame_number(path: Path) -> int:
    """Return the last number in a file's name: frame012.png -> 12, img_07_raw.png -> 7."""
    numbers = re.findall(r"\d+", path.stem)
    if not numbers:
        raise DataError(path, "has no frame number in its name", "rename it or move it out of the folder")
    return int(numbers[-1])


def replace_frame_number(path: Path, number: int) -> Path:
    """Replace the frame number in a file's name: (frame012.png, 7) -> frame007.png."""
    *_, last = re.finditer(r"\d+", path.stem)
    digits = f"{number:0{len(last[0])}d}"
    return path.with_name(f"{path.stem[: last.start()]}{digits}{path.stem[last.end() :]}{path.suffix}")


def spacing(numbers: Iterable[int]) -> int:
    """Return the largest common step of frame numbers; 0 for fewer than two numbers."""
    return math.gcd(*(after - before for before, after in pairwise(sorted(numbers))))


def whole_steps(interval: float, rate: float) -> int:
    """Convert an interval in seconds to steps at ``rate`` per second; return 0 for a fraction of a step."""
    steps = round(interval * rate)
    return steps if abs(interval * rate - steps) < 1e-6 else 0


def files_by_number(folder: Path, *patterns: str) -> dict[int, Path]:
    """List a folder's files by frame number, for the first pattern that matches any file."""
    for pattern in patterns:
        files: dict[int, Path] = {}
        for path in sorted(folder.glob(pattern)):
            if path.name.startswith("."):  # macOS archives put ._frame000.png beside frame000.png
                continue
            number = frame_number(path)
            if number in files:
                raise DataError(path, f"has the same frame number as {files[number].name}", "remove one of them")
            files[number] = path
        if files:
            return files
    return {}


def decode(path: Path, flags: int = cv2.IMREAD_UNCHANGED) -> tuple[bytes, np.ndarray]:
    """Read the bytes and pixels of an image file, (H, W) or (H, W, C) with blue first; ``flags`` are OpenCV's."""
    with reading(path, "cannot be opened ({})", "check its rights"):
        data = path.read_bytes()
    refuse_pointer(path, data)
    try:
        header = read_header(data)
    except ValueError as error:
        raise DataError(path, f"is too large to be read ({error})", "export it smaller") from error
    if not header.complete or (header.size is None and data.startswith((JPEG, PNG))):
        raise DataError(path, *DAMAGED)  # decoders would return a part without an error
    if header.size is not None:
        refuse_large(path, header.size)
    if header.pictures > 1:
        raise SeveralPictures(path, header.pictures)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:  # OpenCV limits the size of formats that Pillow does not know
        image = None
    if image is None:
        raise DataError(path, *DAMAGED)
    return data, image


def decode_label(path: Path) -> tuple[bytes, np.ndarray]:
    """Read a label file as `decode` does; refuse a MinIsWhite TIFF, whose values programs read in two ways."""
    data, label = decode(path)
    if not data.startswith((JPEG, PNG)) and read_header(data).min_is_white:
        what = "is a TIFF with photometric interpretation MinIsWhite: programs read 0 either as 0 or as the maximum"
        raise DataError(path, what, "export it again as PNG from the program that made it, and compare its values")
    return data, label


def file_exists(path: Path) -> bool:
    """Return whether a file exists, or the video file of a frame such as video.mp4/000012."""
    return path.is_file() or path.parent.is_file()


def turn_of(what: str, size: Size, path: Path, *, image_size: Size, image_path: Path) -> int:
    """Return the EXIF orientation that aligns a mask or depth of (H, W) with its upright image of ``image_size``.

    Some programs store masks upright, which gives `UPRIGHT`; others store them like the pixels in the image file, which
    gives the image's orientation. The sizes decide; DataError if they do not fit, or both ways fit.
    """
    turn = _of_image(image_path)
    own = UPRIGHT if path.suffix.lower() in (".tif", ".tiff") else _of_image(path)  # the decoder turns TIFF
    as_stored = image_size[::-1] if turn >= 5 else image_size  # orientations from 5 on swap height and width
    if own == turn and size == as_stored:
        return turn  # both have the same orientation
    if own != UPRIGHT:
        has = f"has the EXIF orientation {own}, and its image {image_path} has {turn}"
        raise DataError(path, has, f"export the {what} without an orientation")
    if turn != UPRIGHT and size == as_stored:
        if as_stored == image_size:
            has = f"has the EXIF orientation {turn}, and the {what} {path} fits it turned and as stored"
            remedy = "apply the orientation (`magick mogrify -auto-orient`), export the masks of the turned images"
            raise DataError(image_path, has, f"{remedy}, and look at them")
        return turn
    refuse_other_size(what, size, path, image_size=image_size, image_path=image_path)
    return UPRIGHT


def turned(values: np.ndarray, turn: int) -> np.ndarray:
    """Turn an array (H, W, ...) by an EXIF orientation."""
    if turn == UPRIGHT:
        return values
    if turn >= 5:
        values = np.swapaxes(values, 0, 1)
    rows = slice(None, None, -1 if turn in (3, 4, 7, 8) else 1)
    columns = slice(None, None, -1 if turn in (2, 3, 6, 7) else 1)
    return np.ascontiguousarray(values[rows, columns])


def _of_image(path: Path) -> int:
    return orientation(path) if path.suffix.lower() in IMAGES else UPRIGHT  # frames of a video are upright
