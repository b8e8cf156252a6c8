"""Connected regions of a mask, and their outlines as polygons.

Coordinates are in pixels: x to the right and y downwards from the upper left corner of the picture, so pixel (0, 0)
covers [0, 1] x [0, 1]. Exact outlines run 0.25 pixels inside the region's border. The common ways to fill a polygon
then return the region itself: pixels whose centre is inside (COCO, CVAT), and corners rounded down with the border
drawn (labelme, Ultralytics).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw
from scipy.spatial import KDTree

LEAST_IOU = 0.99
"""Minimum IoU of the polygons with the mask, for every class of every frame."""
_STRICTER = 0.995  # minimum IoU of a region, if regions lose pixels to their simplified neighbours
_TOLERANCES = (2.0, 1.4, 1.0, 0.9, 0.8, 0.7, 0.5, 0.35)  # pixels between a polygon and the exact outline


class Region(NamedTuple):
    """8-connected pixels of one class."""

    class_id: int
    x: int  # left column
    y: int  # top row
    pixels: np.ndarray  # bool (h, w), cut to the region

    def in_frame(self, height: int, width: int) -> np.ndarray:
        """Return the region as a uint8 mask (height, width) of 0 and 1."""
        frame = np.zeros((height, width), np.uint8)
        h, w = self.pixels.shape
        frame[self.y : self.y + h, self.x : self.x + w] = self.pixels
        return frame


def regions(mask: np.ndarray) -> Iterator[Region]:
    """Yield all regions of a uint8 mask (H, W) of class ids, by class; 0 is the background."""
    for class_id in np.unique(mask[mask > 0]).tolist():
        count, numbers, boxes, _ = cv2.connectedComponentsWithStats((mask == class_id).view(np.uint8), connectivity=8)
        for number in range(1, count):
            x, y, w, h = (int(value) for value in boxes[number, :4])
            yield Region(class_id, x, y, numbers[y : y + h, x : x + w] == number)


def polygons(mask: np.ndarray) -> list[tuple[Region, np.ndarray]]:
    """Return all regions of a mask with a polygon each, float64 (N, 2) of x and y, the largest first.

    The polygons have at least `LEAST_IOU` by all `FILLS`, if they are drawn one above the other in this order. They are
    simplified as far as this allows. A slit connects each hole with the outline.
    """
    largest_first = sorted(regions(mask), key=lambda region: -int(region.pixels.sum()))
    for least in (LEAST_IOU, _STRICTER):
        found = [(region, _simplified(region, least)) for region in largest_first]
        if all(_keeps_classes(mask, found, fill) for fill in FILLS):
            return found
    return [(region, _exact(region)) for region in largest_first]


def has_hole(region: Region) -> bool:
    return len(_rings(region)) > 1


def fill_centres(polygon: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the pixels that pycocotools fills, about those whose centre lies inside, bool (height, width)."""
    from pycocotools import mask

    (runs,) = mask.frPyObjects([polygon.ravel().tolist()], height, width)
    return mask.decode(runs).astype(bool)


def fill_rounded_down(polygon: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the pixels that OpenCV fills after rounding the corners down, bool (height, width)."""
    filled = np.zeros((height, width), np.uint8)
    return cv2.fillPoly(filled, [np.floor(polygon).astype(np.int32)], (1,)).astype(bool)


def fill_drawn(polygon: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the pixels that Pillow fills, which also rounds down, but draws borders in another way than OpenCV."""
    filled = Image.new("1", (width, height))
    ImageDraw.Draw(filled).polygon(polygon.ravel().tolist(), fill=1, outline=1)
    return np.asarray(filled)


FILLS: tuple[Callable[[np.ndarray, int, int], np.ndarray], ...] = (fill_centres, fill_rounded_down, fill_drawn)
"""Ways to fill a polygon: of pycocotools and CVAT, Ultralytics, and labelme."""


def _rings(region: Region) -> list[np.ndarray]:
    """Return the exact outline and the holes' outlines, float64 (N, 2) each, relative to the region."""
    # OpenCV's contours run through pixel centres: in a picture of twice the size, these lie 0.25 pixels inside
    double = np.pad(region.pixels, 1).view(np.uint8).repeat(2, axis=0).repeat(2, axis=1)
    contours, hierarchy = cv2.findContours(double, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    outer_first = sorted(range(len(contours)), key=lambda number: hierarchy[0][number][3] >= 0)
    return [(contours[number][:, 0] + 0.5) / 2 - 1 for number in outer_first]


def _simplified(region: Region, least: float) -> np.ndarray:
    rings = _rings(region)
    for tolerance in _TOLERANCES:
        polygon = _joined(rings, tolerance)
        if all(iou(fill(polygon, *region.pixels.shape), region.pixels) >= least for fill in FILLS):
            return _moved(polygon, region)
    return _exact(region)


def _exact(region: Region) -> np.ndarray:
    return _moved(_joined(_rings(region), 0), region)


def _moved(polygon: np.ndarray, region: Region) -> np.ndarray:
    return polygon + np.array([region.x, region.y])


def iou(one: np.ndarray, other: np.ndarray) -> float:
    """Return the intersection over union of two masks (H, W); NaN if both are empty."""
    return float(np.logical_and(one, other).sum() / np.logical_or(one, other).sum())


def _keeps_classes(
    mask: np.ndarray, found: list[tuple[Region, np.ndarray]], fill: Callable[[np.ndarray, int, int], np.ndarray]
) -> bool:
    """Return whether the polygons, drawn in order, have `LEAST_IOU` for every class of the mask."""
    drawn = np.zeros_like(mask)
    for region, polygon in found:
        h, w = region.pixels.shape
        filled = fill(polygon - np.array([region.x, region.y]), h, w)  # a polygon lies within its region's box
        drawn[region.y : region.y + h, region.x : region.x + w][filled] = region.class_id
    return all(iou(drawn == number, mask == number) >= LEAST_IOU for number in {region.class_id for region, _ in found})


def _joined(rings: list[np.ndarray], tolerance: float) -> np.ndarray:
    """Simplify rings, and connect every hole with the outline, the closest hole first, at the closest two points."""
    rings = [_approximated(ring, tolerance) for ring in rings]
    points, ring_of = np.concatenate(rings), np.repeat(np.arange(len(rings)), [len(ring) for ring in rings])
    order = list(range(len(rings[0])))  # of the polygon's points
    distances, nearest = np.full(len(points), np.inf), np.zeros(len(points), int)  # to the polygon
    added, left = 0, ring_of > 0
    while left.any():
        new = np.flatnonzero(ring_of == added)
        found, indices = KDTree(points[new]).query(points)
        closer = found < distances
        distances[closer], nearest[closer] = found[closer], new[indices[closer]]
        start = int(np.where(left, distances, np.inf).argmin())
        added, end = int(ring_of[start]), int(nearest[start])
        hole = np.flatnonzero(ring_of == added)
        place = order.index(end) + 1
        order[place:place] = [*np.roll(hole, hole[0] - start).tolist(), start, end]
        left &= ring_of != added
    return points[order]


def _approximated(ring: np.ndarray, tolerance: float) -> np.ndarray:
    if not tolerance:
        return ring
    fewer: Any = cv2.approxPolyDP(ring.astype(np.float32), tolerance, True)[:, 0]
    return fewer.astype(float) if len(fewer) > 2 else ring
