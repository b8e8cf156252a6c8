"""Read a mask of any tool as whole numbers or colours, refusing what loses ids; and label volumes, kept packed."""

from __future__ import annotations

import io
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np

from shared_components.data.custom.ids import Ids, Value, counts, unknown_values
from shared_components.data.files import DAMAGED, Axes, DataError, Size, decode
from shared_components.data.nifti import label_frames, label_shape

_AGAIN = "export the mask again as PNG"
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"
_PNG_COLOUR_TYPE = 25  # its place in a PNG file
_PALETTE = 3


def read_mask(path: Path, *, coloured: bool) -> np.ndarray:
    """Read a mask.

    Args:
        coloured: as colours; of a palette its colours are meant then, and its places otherwise. What is fully
            transparent is black.

    Returns:
        uint8 (H, W, 3) RGB, or unsigned whole numbers (H, W) of 8 or 16 bits.

    Raises:
        DataError: the file is missing or damaged, is JPEG, or holds other values than are asked for.
    """
    data, mask = decode(path)
    if data.startswith(_JPEG):
        what = "is JPEG, which blurs values and colours along every edge"
        raise DataError(path, what, f"{_AGAIN} from the program that made it; converting it does not bring them back")
    if mask.dtype not in (np.uint8, np.uint16) or (mask.ndim == 3 and mask.dtype != np.uint8):
        what = f"holds {mask.dtype} values" + (" in colours" if mask.ndim == 3 else "")
        raise DataError(path, what, f"{_AGAIN} with 8 bits per pixel and channel")
    if not coloured and data.startswith(_PNG) and data[_PNG_COLOUR_TYPE] == _PALETTE:
        return _places(data, path)
    mask = _opaque(mask, path)
    return _colours(mask, path) if coloured else _numbers(mask, path)


def _places(data: bytes, path: Path) -> np.ndarray:
    """Return each pixel's index in the PNG's palette, uint8 (H, W); OpenCV would return colours."""
    import av

    try:
        with av.open(io.BytesIO(data), mode="r", format="png_pipe") as container:
            places, _ = next(container.decode(video=0)).to_ndarray()
    except (av.error.FFmpegError, StopIteration):  # OpenCV is content with less
        raise DataError(path, *DAMAGED) from None
    return places


def _opaque(mask: np.ndarray, path: Path) -> np.ndarray:
    """Return a mask without its alpha channel."""
    if mask.ndim == 2 or mask.shape[2] == 3:
        return mask
    alpha, mask = mask[:, :, -1], mask[:, :, :-1]
    if soft := int(((alpha > 0) & (alpha < 255)).sum()):
        what = f"has {soft:,} half-transparent pixels, of which nobody can say what they are"
        raise DataError(path, what, f"{_AGAIN} with hard edges (no anti-aliasing)")
    return np.where(alpha[:, :, None] > 0, mask, 0).astype(np.uint8)


def _colours(mask: np.ndarray, path: Path) -> np.ndarray:
    if mask.dtype != np.uint8:
        raise DataError(path, "holds 16-bit values, and 'ids' names colours", "name its values in 'ids'")
    if mask.ndim == 2 or mask.shape[2] == 1:
        return np.repeat(mask.reshape(*mask.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(mask[:, :, ::-1])


def _numbers(mask: np.ndarray, path: Path) -> np.ndarray:
    if mask.ndim == 2:
        return mask
    first = mask[:, :, 0]
    if any((first != mask[:, :, channel]).any() for channel in range(1, mask.shape[2])):
        what = "is in colours, and 'ids' of site.yaml names numbers"
        raise DataError(path, what, 'name its colours there, such as "#ff8000", or export one channel of numbers')
    return np.ascontiguousarray(first)


_KEPT = 256  # volumes; a mask takes some kilobytes, packed
_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class Volume:
    """One volume.

    Attributes:
        path: its file.
        size: (H, W).
        packed: each frame.
        pixels: how many of each value; `frames_with`: in how many frames.
        labelled: the frames with any label, counted from 0.
    """

    path: Path
    size: Size
    packed: tuple[bytes, ...]
    pixels: Counter[Value]
    frames_with: Counter[Value]
    labelled: tuple[int, ...]

    def frame(self, place: int) -> np.ndarray:
        """Return one frame, uint16 (H, W)."""
        if not 0 <= place < len(self.packed):
            raise DataError(self.path, f"has no frame {place}", "export the volume again")
        return np.frombuffer(zlib.decompress(self.packed[place]), np.uint16).reshape(self.size)

    def refuse_unknown(self, ids: Ids) -> None:
        """Raise one DataError for all values of the volume that the table does not have."""
        known = {value for value, _ in ids.table}
        if odd := {value: count for value, count in self.pixels.items() if value not in known}:
            most = max(self.frames_with[value] for value in odd)
            raise unknown_values(self.path, odd, f" (in {most} of {len(self.packed)} frames)")


def packed_volume(path: Path, *, axes: Axes) -> Volume:
    """Read a volume, or return it as it was read before.

    Raises:
        DataError: as `nifti.label_frames`.
    """
    try:
        about = path.stat()
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "put it back or correct 'masks'") from error
    with _LOCK:  # several threads ask for frames of one volume
        return _packed(path, axes, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=_KEPT)
def _packed(path: Path, axes: Axes, changed: int, length: int) -> Volume:
    _, H, W = label_shape(path, axes=axes)
    packed, labelled = [], []
    pixels, frames_with = Counter[Value](), Counter[Value]()
    for place, frame in enumerate(label_frames(path, axes=axes)):
        found = counts(frame)
        pixels.update(found)
        frames_with.update(found.keys())
        packed.append(zlib.compress(np.ascontiguousarray(frame).tobytes(), 1))
        if set(found) - {0}:
            labelled.append(place)
    return Volume(path, (H, W), tuple(packed), pixels, frames_with, tuple(labelled))
