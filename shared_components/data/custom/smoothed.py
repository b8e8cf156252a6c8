"""Detect masks with smoothed (anti-aliased) edges and read them with a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import cv2
import numpy as np

from shared_components.data.custom.ids import Value, counts

_FEWEST = 4  # minimum number of edge values; the user names fewer values
_SOLID = 0.25  # minimum share of a class's pixels whose neighbours have the same class
_LEAST = 0.3  # minimum share of solid pixels in a mask; a photograph has fewer
_NEAR = 4  # maximum difference of an edge value from a value
_MORE = 20  # that is more frequent by this factor
_TOLERANCE = 2  # maximum difference of values within an area
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
    """Mark pixels whose eight neighbours have the same value, bool (H, W)."""
    square = np.ones((3, 3), np.uint8)
    same = cv2.erode(mask, square) == cv2.dilate(mask, square)
    return same.all(axis=2) if same.ndim == 3 else same


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
