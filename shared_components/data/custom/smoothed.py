"""Detect masks with smoothed (anti-aliased) edges and read them with a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import cv2
import numpy as np

from shared_components.data.custom.ids import Value, counts

_FEWEST = 4  # values along edges; fewer are named one by one
_SOLID = 0.25  # share of a class's pixels with neighbours of the same class
_LEAST = 0.3  # share of a mask whose pixels are within areas; a photograph has fewer
_NEAR = 4  # a value so near to a more frequent value is an edge
_MORE = 20  # times as frequent
_TOLERANCE = 2  # of a value within an area
_FAR = 1e6  # pixels


def edge_values(masks: Iterable[np.ndarray], *, coloured: bool) -> tuple[list[Value], list[Value]] | None:
    """Return the values of areas and the values on smoothed edges; None for masks with hard edges."""
    pixels, solid = Counter[Value](), Counter[Value]()
    for mask in masks:
        inside = _is_solid(mask)
        if inside.mean() < _LEAST:
            return None
        pixels.update(counts(mask, coloured=coloured))
        solid.update(counts(mask[inside], coloured=coloured))
    areas = [value for value in pixels if solid[value] >= _SOLID * pixels[value]]
    areas = [value for value in areas if not any(_is_beside(value, other, pixels) for other in areas)]
    edges = [value for value in pixels if value not in areas]
    return (sorted(areas, key=str), edges) if len(edges) >= max(_FEWEST, len(areas)) else None


def _is_solid(mask: np.ndarray) -> np.ndarray:
    """Return where all eight neighbours of a pixel have its value, bool (H, W)."""
    square = np.ones((3, 3), np.uint8)
    same = cv2.erode(mask, square) == cv2.dilate(mask, square)
    return same.all(axis=2) if same.ndim == 3 else same


def _is_beside(value: Value, other: Value, pixels: Counter[Value]) -> bool:
    near = np.abs(np.subtract(value, other)).max() <= _NEAR
    return value != other and bool(near) and pixels[other] >= _MORE * pixels[value]


def without_edges(
    mask: np.ndarray, values: Sequence[Value], *, background: Sequence[Value], threshold: float
) -> np.ndarray:
    """Return a mask (H, W) or (H, W, 3) with one of the values at each pixel on a smoothed edge.

    The value is the nearest area's or the second nearest's. The pixel's share of the second decides: `threshold` is the
    least share of a class beside background, and a half the limit between two classes.
    """
    wide = mask.reshape(*mask.shape[:2], -1).astype(np.float32)
    table = np.array([np.broadcast_to(np.array(value), wide.shape[2]) for value in values], np.float32)
    far = [_distance_to(np.abs(wide - value).max(axis=2)) for value in table]
    nearest = np.argsort(np.stack(far), axis=0, kind="stable")  # (K, H, W) -> by distance
    first, second = nearest[0], nearest[1]
    one, two = table[first], table[second]  # (H, W, C)
    span = np.maximum(((two - one) ** 2).sum(axis=2), 1e-9)
    share = ((wide - one) * (two - one)).sum(axis=2) / span  # of the second
    is_background = np.array([value in background for value in values])
    least = np.where(is_background[first], threshold, np.where(is_background[second], 1 - threshold, 0.5))
    beyond = np.where(is_background[second] & ~is_background[first], share > least, share >= least)
    chosen = table[np.where(beyond, second, first)]
    return chosen.reshape(mask.shape).astype(mask.dtype)


def _distance_to(difference: np.ndarray) -> np.ndarray:
    """Return how far each pixel is from the areas of a value, by its difference from the value (H, W).

    Lines one pixel wide are no areas. Of a value without any, the pixels nearest to it by value come first.
    """
    area = cv2.morphologyEx((difference <= _TOLERANCE).astype(np.uint8), cv2.MORPH_OPEN, np.ones((2, 2), np.uint8))
    if not area.any():
        return _FAR + difference
    return cv2.distanceTransform(1 - area, cv2.DIST_L2, 5)
