"""Read masks as whole numbers or colours, refuse files with damaged ids, and cache compressed label volumes."""

from __future__ import annotations

import io
import zlib
from collections import Counter
from collections.abc import Collection, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np

from shared_components.common.counted import counted
from shared_components.data.custom.ids import Ids, Value, counts, unknown_values
from shared_components.data.files import DAMAGED, Axes, DataError, Size, decode_label
from shared_components.data.image_headers import JPEG
from shared_components.data.nifti import label_frames, label_shape

_AGAIN = "export the mask again as PNG"
_VISIBLE = 8  # minimum step of grey that a person can see


def read_mask(path: Path, *, coloured: bool, known: Collection[Value] = ()) -> np.ndarray:
    """Read a mask as colours or as numbers.

    Args:
        coloured: Return colours; fully transparent pixels are black. Otherwise return numbers: for a palette of colours
            the palette indices, for a palette of greys see `_palette_numbers`.
        known: Known ids besides 0.

    Returns:
        uint8 (H, W, 3) RGB, or unsigned whole numbers (H, W) of 8 or 16 bits.

    Raises:
        DataError: The file is missing, damaged, JPEG, or contains numbers instead of colours or the reverse.
    """
    data, mask = decode_label(path)
    if data.startswith(JPEG):
        what = "is JPEG, which blurs values and colours along every edge"
        raise DataError(path, what, f"{_AGAIN} from the program that made it; converting it does not bring them back")
    if mask.dtype not in (np.uint8, np.uint16) or (mask.ndim == 3 and mask.dtype != np.uint8):
        what = f"holds {mask.dtype} values" + (" in colours" if mask.ndim == 3 else "")
        raise DataError(path, what, f"{_AGAIN} with 8 bits per pixel and channel")
    if not coloured and (indexed := _palette(data, path)) is not None:
        return _palette_numbers(*indexed, path, {0, *known})
    mask = _opaque(mask, path)
    return _colours(mask, path) if coloured else _numbers(mask, path)


def _palette(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the palette indices, uint8 (H, W), and the palette (N, 3); None for an image without palette."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode != "P":
                return None
            return np.array(image), np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
    except (OSError, ValueError, SyntaxError):  # OpenCV accepts some damaged files
        raise DataError(path, *DAMAGED) from None


def _palette_numbers(indices: np.ndarray, palette: np.ndarray, path: Path, known: Set[Value]) -> np.ndarray:
    """Return the ids of a palette image: indices of a palette of colours; otherwise indices or grey values.

    Image optimisers and `quantize` write grey ids with a palette: the grey values are the ids. Label editors write ids
    as indices, with greys that a person can distinguish. If the known ids do not decide, the greys do: they are ids if
    they are not in order, or too close to distinguish.

    Raises:
        DataError: Both are possible.
    """
    if (palette != palette[:, :1]).any():
        return indices
    used = np.flatnonzero(np.bincount(indices.ravel(), minlength=len(palette)))
    if used[-1] >= len(palette):
        raise DataError(path, *DAMAGED)
    greys = palette[used, 0]
    steps = np.diff(greys.astype(int))
    fits = known >= set(greys.tolist()), known >= set(used.tolist())
    if np.array_equal(greys, used) or fits == (True, False):
        return palette[indices, 0]
    if fits == (False, True):
        return indices
    in_order = (steps > 0).all() or (steps < 0).all()
    if not in_order or np.abs(steps).min() < _VISIBLE:
        return palette[indices, 0]
    what = f"has a palette of greys, and its ids may be the places {used.tolist()} or the greys {greys.tolist()}"
    raise DataError(path, what, f"{_AGAIN} in grey without a palette (mode L), or name one kind in 'ids' (--id)")


def _opaque(mask: np.ndarray, path: Path) -> np.ndarray:
    """Remove a mask's alpha channel."""
    if mask.ndim == 2 or mask.shape[2] == 3:
        return mask
    alpha, mask = mask[:, :, -1], mask[:, :, :-1]
    if soft := int(((alpha > 0) & (alpha < 255)).sum()):
        what = f"has {counted(soft, 'half-transparent pixel')}, whose class is unknown"
        raise DataError(path, what, f"{_AGAIN} with hard edges (no anti-aliasing)")
    if not alpha.any() and (mask != mask[0, 0]).any():
        raise DataError(path, "is transparent everywhere, and holds several values", f"{_AGAIN} without transparency")
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
    if (mask[:, :, :1] != mask).any():
        what = "is in colours, and 'ids' of site.yaml names numbers"
        raise DataError(path, what, 'name its colours there, such as "#ff8000", or export one channel of numbers')
    return np.ascontiguousarray(mask[:, :, 0])


_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class Volume:
    """A label volume in memory.

    Attributes:
        size: Height and width.
        packed: Compressed frames.
        pixels: Number of pixels by value.
        frames_with: Number of frames by value.
        labelled: Frames with any label, counted from 0.
    """

    path: Path
    size: Size
    packed: tuple[bytes, ...]
    pixels: Counter[Value]
    frames_with: Counter[Value]
    labelled: tuple[int, ...]

    def frame(self, place: int) -> np.ndarray:
        """Return a frame, uint16 (H, W)."""
        if not 0 <= place < len(self.packed):
            raise DataError(self.path, f"has no frame {place}", "export the volume again")
        return np.frombuffer(zlib.decompress(self.packed[place]), np.uint16).reshape(self.size)

    def refuse_unknown(self, ids: Ids) -> None:
        """Raise one DataError for all values that are not in the table."""
        known = {value for value, _ in ids.table}
        if unknown := {value: count for value, count in self.pixels.items() if value not in known}:
            most = max(self.frames_with[value] for value in unknown)
            raise unknown_values(self.path, unknown, f" (in {most} of {counted(len(self.packed), 'frame')})")


def packed_volume(path: Path, *, axes: Axes) -> Volume:
    """Read a volume, or return it from the cache.

    Raises:
        DataError: See `nifti.label_frames`.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "put it back or correct 'masks'") from error
    with _LOCK:  # several threads ask for frames of one volume
        return _packed(path, axes, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _packed(path: Path, axes: Axes, changed: int, length: int) -> Volume:
    _, H, W = label_shape(path, axes=axes)
    packed, labelled = [], []
    pixels, frames_with = Counter[Value](), Counter[Value]()
    for place, frame in enumerate(label_frames(path, axes=axes)):
        values = counts(frame)
        pixels.update(values)
        frames_with.update(values.keys())
        packed.append(zlib.compress(np.ascontiguousarray(frame).tobytes(), 1))
        if set(values) - {0}:
            labelled.append(place)
    return Volume(path, (H, W), tuple(packed), pixels, frames_with, tuple(labelled))
