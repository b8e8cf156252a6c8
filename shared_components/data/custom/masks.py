"""Read masks as whole numbers or colours, refusing files that lost ids; read label volumes, kept packed."""

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
_TOLD_APART = 8  # steps of grey that a person can tell apart


def read_mask(path: Path, *, coloured: bool, known: Collection[Value] = ()) -> np.ndarray:
    """Read a mask.

    Args:
        coloured: as colours; what is fully transparent is black. Else as numbers: of a palette of colours the places in
            it, of a palette of greys see `_palette_numbers`.
        known: numbers that a mask may hold besides 0, as far as they are known.

    Returns:
        uint8 (H, W, 3) RGB, or unsigned whole numbers (H, W) of 8 or 16 bits.

    Raises:
        DataError: the file is missing or damaged, is JPEG, or holds other values than are asked for.
    """
    data, mask = decode_label(path)
    if data.startswith(JPEG):
        what = "is JPEG, which blurs values and colours along every edge"
        raise DataError(path, what, f"{_AGAIN} from the program that made it; converting it does not bring them back")
    if mask.dtype not in (np.uint8, np.uint16) or (mask.ndim == 3 and mask.dtype != np.uint8):
        what = f"holds {mask.dtype} values" + (" in colours" if mask.ndim == 3 else "")
        raise DataError(path, what, f"{_AGAIN} with 8 bits per pixel and channel")
    if not coloured and (found := _palette(data, path)) is not None:
        return _palette_numbers(*found, path, {0, *known})
    mask = _opaque(mask, path)
    return _colours(mask, path) if coloured else _numbers(mask, path)


def _palette(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Return each pixel's place in the palette, uint8 (H, W), and the palette (N, 3); None if the image has none."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode != "P":
                return None
            return np.array(image), np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
    except (OSError, ValueError, SyntaxError):  # OpenCV is content with less
        raise DataError(path, *DAMAGED) from None


def _palette_numbers(places: np.ndarray, palette: np.ndarray, path: Path, known: Set[Value]) -> np.ndarray:
    """Return the numbers that a palette image means: the places in a palette of colours, else places or grey values.

    Image optimisers and `quantize` write grey ids with a palette: the grey values are the ids. Label editors write ids
    as places, beside greys that a person can tell apart. If the known ids do not decide, the greys do: they are ids if
    they are out of order, or too close for a person to tell apart.

    Raises:
        DataError: nothing decides.
    """
    if (palette != palette[:, :1]).any():
        return places
    used = np.flatnonzero(np.bincount(places.ravel(), minlength=len(palette)))
    if used[-1] >= len(palette):
        raise DataError(path, *DAMAGED)
    greys = palette[used, 0]
    steps = np.diff(greys.astype(int))
    fits = known >= set(greys.tolist()), known >= set(used.tolist())
    if np.array_equal(greys, used) or fits == (True, False):
        return palette[places, 0]
    if fits == (False, True):
        return places
    in_order = (steps > 0).all() or (steps < 0).all()
    if not in_order or np.abs(steps).min() < _TOLD_APART:
        return palette[places, 0]
    what = f"has a palette of greys, and its ids may be the places {used.tolist()} or the greys {greys.tolist()}"
    raise DataError(path, what, f"{_AGAIN} in grey without a palette (mode L), or name one kind in 'ids' (--id)")


def _opaque(mask: np.ndarray, path: Path) -> np.ndarray:
    """Return a mask without its alpha channel."""
    if mask.ndim == 2 or mask.shape[2] == 3:
        return mask
    alpha, mask = mask[:, :, -1], mask[:, :, :-1]
    if soft := int(((alpha > 0) & (alpha < 255)).sum()):
        what = f"has {counted(soft, 'half-transparent pixel')}, of which nobody can say what they are"
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
            raise unknown_values(self.path, odd, f" (in {most} of {counted(len(self.packed), 'frame')})")


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
