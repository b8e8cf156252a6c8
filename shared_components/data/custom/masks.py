"""Read masks as numbers or colours, detect smoothed (anti-aliased) edges, and cache compressed label volumes."""

import io
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import cv2
import numpy as np

from shared_components.common.counted import counted
from shared_components.data.custom.ids import Ids, Value, counts, unknown_values
from shared_components.data.files.image_headers import JPEG
from shared_components.data.files.images import DAMAGED, Axes, DataError, Size, decode_label

_AGAIN = "export the mask again as PNG"
_VISIBLE = 8  # minimum step of grey that a person can see


def read_mask(path: Path, *, coloured: bool, known: Collection[Value] = ()) -> np.ndarray:
    """Read a mask as uint8 RGB (H, W, 3) if `coloured`, else as unsigned whole numbers (H, W) of 8 or 16 bits.

    Fully transparent pixels are black. The numbers of a palette of colours are its indices; for a palette of greys see
    `_palette_numbers`, which uses the ids `known` besides 0. DataError for a missing or damaged file, JPEG, and numbers
    instead of colours or the reverse.
    """
    data, mask = decode_label(path)
    if data.startswith(JPEG):
        what = "is JPEG, which blurs values and colours along every edge"
        raise DataError(path, what, f"{_AGAIN} from the program that made it; converting it does not bring them back")
    if mask.dtype not in (np.uint8, np.uint16) or (mask.ndim == 3 and mask.dtype != np.uint8):
        what = f"contains {mask.dtype} values" + (" in colours" if mask.ndim == 3 else "")
        raise DataError(path, what, f"{_AGAIN} with 8 bits per pixel and channel")
    if not coloured and (indexed := _palette(data, path)) is not None:
        return _palette_numbers(*indexed, path, {0, *known})
    mask = _opaque(mask, path)
    return _colours(mask, path) if coloured else _numbers(mask, path)


def has_colour_palette(path: Path) -> bool:
    """Return whether a mask has a palette of colours, as in DAVIS; errors as in `read_mask`."""
    indexed = _palette(decode_label(path)[0], path)
    return indexed is not None and bool((indexed[1] != indexed[1][:, :1]).any())


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
    they are not in order, or too close to distinguish. Otherwise DataError.
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
    if mask.ndim == 2 or mask.shape[2] == 3:
        return mask
    alpha, mask = mask[:, :, -1], mask[:, :, :-1]
    if soft := int(((alpha > 0) & (alpha < 255)).sum()):
        what = f"has {counted(soft, 'half-transparent pixel')}, whose class is unknown"
        raise DataError(path, what, f"{_AGAIN} with hard edges (no anti-aliasing)")
    if not alpha.any() and (mask != mask[0, 0]).any():
        raise DataError(path, "is transparent everywhere, but has several values", f"{_AGAIN} without transparency")
    return np.where(alpha[:, :, None] > 0, mask, 0).astype(np.uint8)


def _colours(mask: np.ndarray, path: Path) -> np.ndarray:
    if mask.dtype != np.uint8:
        raise DataError(path, "contains 16-bit values, and 'ids' names colours", "name its values in 'ids'")
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


_FEWEST = 4  # minimum number of edge values; the user names fewer values
_SOLID = 0.25  # minimum share of a class's pixels whose neighbours have the same class
_LEAST = 0.3  # minimum share of solid pixels in a mask; a photograph has fewer
_NEAR = 4  # maximum difference of an edge value from a value
_MORE = 20  # that is more frequent by this factor
_TOLERANCE = 2  # maximum difference of values within an area
_FAR = 1e6  # pixels
_SQUARE = np.ones((3, 3), np.uint8)


def edge_values(masks: Iterable[np.ndarray], *, coloured: bool) -> tuple[list[Value], list[Value]] | None:
    """Return the values of areas and the values on smoothed edges; None for masks with hard edges."""
    pixels, solid = Counter[Value](), Counter[Value]()
    for mask in masks:
        same = cv2.erode(mask, _SQUARE) == cv2.dilate(mask, _SQUARE)  # as all eight neighbours
        inside = same.all(axis=2) if same.ndim == 3 else same
        if inside.mean() < _LEAST:
            return None
        pixels.update(counts(mask, coloured=coloured))
        solid.update(counts(mask[inside], coloured=coloured))
    areas = [value for value in pixels if solid[value] >= _SOLID * pixels[value]]
    areas = [value for value in areas if not any(_is_beside(value, other, pixels) for other in areas)]
    edges = [value for value in pixels if value not in areas]
    return (sorted(areas, key=str), edges) if len(edges) >= max(_FEWEST, len(areas)) else None


def _is_beside(value: Value, other: Value, pixels: Counter[Value]) -> bool:
    near = np.abs(np.subtract(value, other)).max() <= _NEAR
    return value != other and bool(near) and pixels[other] >= _MORE * pixels[value]


def without_edges(
    mask: np.ndarray, values: Sequence[Value], *, background: Sequence[Value], threshold: float
) -> np.ndarray:
    """Replace the values on smoothed edges of a mask, (H, W) or (H, W, 3), by the values of the areas beside the edge.

    A pixel gets the value of the nearest or second nearest area, by its share of the second. `threshold` is the minimum
    share of a class beside background; the limit between two classes is 0.5.
    """
    wide = mask.reshape(*mask.shape[:2], -1).astype(np.float32)
    table = np.array([np.broadcast_to(np.array(value), wide.shape[2]) for value in values], np.float32)
    distances = np.stack([_distance_to(np.abs(wide - value).max(axis=2)) for value in table])  # (K, H, W)
    nearest, second = np.argsort(distances, axis=0, kind="stable")[:2]  # (H, W) each
    a, b = table[nearest], table[second]  # (H, W, C)
    span = np.maximum(((b - a) ** 2).sum(axis=2), 1e-9)
    share = ((wide - a) * (b - a)).sum(axis=2) / span  # of the second value
    is_background = np.array([value in background for value in values])
    least = np.where(is_background[nearest], threshold, np.where(is_background[second], 1 - threshold, 0.5))
    beyond = np.where(is_background[second] & ~is_background[nearest], share > least, share >= least)
    return table[np.where(beyond, second, nearest)].reshape(mask.shape).astype(mask.dtype)


def _distance_to(difference: np.ndarray) -> np.ndarray:
    """Return each pixel's distance from the areas of a value, given its difference from the value, (H, W).

    Lines of one pixel are not areas. For a value without areas, pixels with the smallest difference are nearest.
    """
    area = cv2.morphologyEx((difference <= _TOLERANCE).astype(np.uint8), cv2.MORPH_OPEN, np.ones((2, 2), np.uint8))
    return cv2.distanceTransform(1 - area, cv2.DIST_L2, 5) if area.any() else _FAR + difference


_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class Volume:
    path: Path
    size: Size  # (H, W)
    packed: tuple[bytes, ...]  # compressed frames
    pixels: Counter[Value]  # number of pixels by value
    frames_with: Counter[Value]  # number of frames by value
    labelled: tuple[int, ...]  # frames with any label, counted from 0

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
    """Read a volume, or return it from the cache; DataError as in `nifti.label_frames`."""
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "put it back or correct 'masks'") from error
    with _LOCK:  # several threads ask for frames of one volume
        return _packed(path, axes, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _packed(path: Path, axes: Axes, changed: int, length: int) -> Volume:
    from shared_components.data.files.nifti import label_frames, label_shape

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
