"""Align masks and depth with images that have an EXIF orientation, which only some programs apply."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shared_components.data.files import IMAGES, DataError, Size, refuse_other_size
from shared_components.data.image_headers import UPRIGHT, orientation

_FIRST_TRANSPOSED = 5  # orientations from 5 on swap height and width
_REMEDY = (
    "apply the orientation (`magick mogrify -auto-orient`), export the masks of the turned images, and look at them"
)


def turn_of(what: str, size: Size, path: Path, *, image_size: Size, image_path: Path) -> int:
    """Return the EXIF orientation that aligns a mask or depth of (H, W) with its upright image of ``image_size``.

    Some programs store masks upright, which gives `UPRIGHT`; others store them like the pixels in the image file, which
    gives the image's orientation. The sizes decide; DataError if they do not fit, or both ways fit.
    """
    turn = _of_image(image_path)
    own = UPRIGHT if path.suffix.lower() in (".tif", ".tiff") else _of_image(path)  # the decoder turns TIFF
    as_stored = image_size[::-1] if turn >= _FIRST_TRANSPOSED else image_size
    if own == turn and size == as_stored:
        return turn  # both have the same orientation
    if own != UPRIGHT:
        has = f"has the EXIF orientation {own}, and its image {image_path} has {turn}"
        raise DataError(path, has, f"export the {what} without an orientation")
    if turn != UPRIGHT and size == as_stored:
        if as_stored == image_size:
            has = f"has the EXIF orientation {turn}, and the {what} {path} fits it turned and as stored"
            raise DataError(image_path, has, _REMEDY)
        return turn
    refuse_other_size(what, size, path, image_size=image_size, image_path=image_path)
    return UPRIGHT


def turned(values: np.ndarray, turn: int) -> np.ndarray:
    """Turn an array (H, W, ...) by an EXIF orientation."""
    if turn == UPRIGHT:
        return values
    if turn >= _FIRST_TRANSPOSED:
        values = np.swapaxes(values, 0, 1)
    rows = slice(None, None, -1 if turn in (3, 4, 7, 8) else 1)
    columns = slice(None, None, -1 if turn in (2, 3, 6, 7) else 1)
    return np.ascontiguousarray(values[rows, columns])


def _of_image(path: Path) -> int:
    return orientation(path) if path.suffix.lower() in IMAGES else UPRIGHT  # frames of a video are upright
