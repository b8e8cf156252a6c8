"""Annotated frames, their shapes, and the pixels of polygons and run lengths."""

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cv2
import msgspec
import numpy as np

from shared_components.data.files.image_headers import read_header
from shared_components.data.files.images import MOST_PIXELS, DataError, Size, reading, refuse_pointer

AGAIN = "export the annotations again"
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_PIXELS)]
"""Length of a run of pixels."""
Side = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
"""Height or width of a frame in pixels."""
Draw = Callable[[Size], np.ndarray]
"""Return the pixels of a shape, bool (H, W), in a frame of (H, W); ValueError if they do not fit the frame."""
_MOST_BYTES = 1 << 30  # of a JSON file; its values take about five times as much memory
_LONGEST = 1 << 22  # pixels along the outline of a polygon; drawing takes 80 bytes for each
_CIRCLE = 72  # corners of an ellipse
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """The area of a class in a frame."""

    name: str
    draw: Draw


@dataclass(frozen=True)
class Frame:
    """An annotated frame.

    Attributes:
        names: Possible names of its image, or of its video if `place` is given; the first that exists counts.
        shapes: Shapes in drawing order.
        size: (H, W) of the annotated image, if the file has it.
        place: Number of the frame in its video, from 0.
        length: Number of frames of the video, if the file has it.
        others: Number of annotations without an area.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    size: Size | None = None
    place: int | None = None
    length: int | None = None
    others: int = 0


@dataclass
class Annotations:
    """Content of an annotation file.

    Attributes:
        path: The file.
        classes: Names of its classes in the file's order, with or without shapes.
        smaller_wins: Whether a smaller shape covers a larger one; otherwise a later shape covers an earlier one.
        left_out: Number of annotations without an area, by kind, such as `boxes`.
        notes: Number of shapes that are drawn and may surprise, by kind, such as `crowd regions`.
    """

    path: Path
    classes: Sequence[str] = ()
    smaller_wins: bool = False
    frames: list[Frame] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


def read_json(path: Path, kind: type[T], form: str) -> T:
    """Parse a JSON file as `kind` without unknown keys; DataError for another form, NaN or a number out of range."""
    remedy = f"{AGAIN} as {form}"
    with reading(path, f"is not {form} ({{}})", remedy, msgspec.DecodeError, ValueError, RecursionError, MemoryError):
        refuse_pointer(path)
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(path, f"is larger than {_MOST_BYTES} bytes", "export fewer frames into one file")
        return msgspec.json.decode(path.read_bytes(), type=kind)


@dataclass(frozen=True)
class Polygons:
    """Draw the union of polygons x1, y1, x2, y2, ..., where (0, 0) is the corner of the first pixel.

    pycocotools decides which pixels belong to a polygon, as in COCO's evaluation and CVAT's exports: pixels that are
    about half inside.

    Attributes:
        rings: Points of each polygon.
        whole: Width and height of a frame in the points' unit, such as 100 for percent; None for pixels.
    """

    rings: Sequence[Sequence[float]]
    whole: float | None = None

    def __call__(self, size: Size) -> np.ndarray:
        """Return bool (H, W); ValueError for very long polygons, or if all of them lie outside of the frame."""
        from pycocotools import mask

        H, W = size
        rings = self._in_pixels(size)
        for ring in rings:
            _refuse_long(ring)
        if all(_is_outside(ring, size) for ring in rings):
            raise ValueError(f"it lies outside of the frame of {W}x{H}")
        return mask.decode(mask.merge(mask.frPyObjects([ring.ravel().tolist() for ring in rings], H, W))).astype(bool)

    def crosses_border(self, size: Size) -> bool:
        """Return whether a point is more than a pixel outside of the frame."""
        W_H = np.array(size[::-1])
        return any(bool(((ring < -1) | (ring > W_H + 1)).any()) for ring in self._in_pixels(size))

    def _in_pixels(self, size: Size) -> list[np.ndarray]:
        """Return the points of each polygon, float (N, 2)."""
        points = [np.asarray(ring, np.float64).reshape(-1, 2) for ring in self.rings]
        return points if self.whole is None else [ring * size[::-1] / self.whole for ring in points]


def first_repeated(values: Iterable[T]) -> T | None:
    """Return the first value that occurs a second time; None if all differ."""
    seen: set[T] = set()
    return next((value for value in values if value in seen or seen.add(value)), None)  # type: ignore[func-returns-value]


def has_area(ring: Sequence[float]) -> bool:
    """Return whether a list x1, y1, x2, y2, ... has at least three points; pycocotools takes two for a box."""
    return len(ring) >= 6 and len(ring) % 2 == 0


def _is_outside(points: np.ndarray, size: Size) -> bool:
    """Return whether all points (N, 2) are left, right, above or below of the frame."""
    return bool((points.max(0) <= 0).any() or (points.min(0) >= size[::-1]).any())


def _refuse_long(points: np.ndarray) -> None:
    steps = np.abs(np.diff(points, axis=0, append=points[:1]))
    if not steps.sum() + np.abs(points[0]).sum() <= _LONGEST:  # refuses NaN, too
        raise ValueError(f"a polygon is longer than {_LONGEST} pixels, or has a point far outside of the frame")


def ellipse(centre: tuple[float, float], radii: tuple[float, float], degrees: float = 0) -> list[float]:
    """Return the corners x1, y1, ... of an ellipse in pixels, turned clockwise by an angle."""
    turn = math.radians(degrees)
    ring: list[float] = []
    for corner in range(_CIRCLE):
        angle = 2 * math.pi * corner / _CIRCLE
        x, y = radii[0] * math.cos(angle), radii[1] * math.sin(angle)
        ring += [
            centre[0] + x * math.cos(turn) - y * math.sin(turn),
            centre[1] + x * math.sin(turn) + y * math.cos(turn),
        ]
    return ring


def pixels_of_runs(runs: Sequence[int] | np.ndarray, size: Size, *, by_column: bool) -> np.ndarray:
    """Return bool (H, W) of run lengths that begin with background; ValueError if they do not fill the size."""
    H, W = size
    runs = np.asarray(runs, np.int64)
    # each is bounded before the sum, which could wrap otherwise
    fitting = 0 < H * W <= MOST_PIXELS and runs.size > 0 and runs.min() >= 0 and runs.max() <= MOST_PIXELS
    if not fitting or runs.sum() != H * W:
        raise ValueError(f"run lengths of {runs.sum()} pixels do not fill {W}x{H}")
    values = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return values.reshape(W, H).T if by_column else values.reshape(H, W)


def decode_png(text: str, flags: int) -> np.ndarray:
    """Decode a PNG in base64 with OpenCV's `flags`; ValueError if it is damaged or very large."""
    data = base64.b64decode(text, validate=True)
    header = read_header(data)
    if header.size is None or not header.complete or header.size[0] * header.size[1] > MOST_PIXELS:
        raise ValueError("a mask is not a whole PNG")
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise ValueError("a mask is not a readable PNG")
    return np.asarray(image)


def placed_at(pixels: np.ndarray, left: int, top: int) -> Draw:
    """Draw pixels, bool (h, w), with their first pixel at (left, top)."""

    def draw(size: Size) -> np.ndarray:
        h, w = pixels.shape
        area = np.zeros(size, bool)
        if not (0 <= left <= size[1] - w and 0 <= top <= size[0] - h):
            raise ValueError(f"a mask of {w}x{h} at ({left}, {top}) lies outside of the frame of {size[1]}x{size[0]}")
        area[top : top + h, left : left + w] = pixels
        return area

    return draw


def number_of(values: Mapping[str, Any], key: str) -> float:
    """Return a finite number from the attributes of an element; ValueError if it is missing or another value."""
    number = float(values.get(key, "nan"))
    if not math.isfinite(number):
        raise ValueError(f"{key} is {values.get(key)!r}, not a number")
    return number
