"""Read labelme's JSON, one file per image, as labelme and X-AnyLabeling write it.

Format: https://github.com/wkentaro/labelme, `labelme/label_file.py`. Points are in pixels.
"""

from itertools import chain
from math import dist
from pathlib import Path

import cv2
import numpy as np
from msgspec import Struct

from shared_components.data.annotations.shapes import (
    Annotations,
    Draw,
    Frame,
    Polygons,
    Shape,
    Side,
    decode_png,
    ellipse,
    has_area,
    placed_at,
    read_json,
)
from shared_components.data.files.images import Size

TITLE = "labelme"
_OTHERS = {"rectangle": "boxes", "point": "points", "points": "points", "line": "lines", "linestrip": "lines"}


class _Shape(Struct):
    label: str
    points: list[tuple[float, float]]
    shape_type: str = "polygon"
    mask: str | None = None


class _File(Struct):
    shapes: list[_Shape]
    imagePath: str
    imageHeight: Side | None = None
    imageWidth: Side | None = None


def recognises(head: str) -> bool:
    return '"shapes"' in head and ('"imagePath"' in head or '"imageHeight"' in head)


def read(path: Path) -> Annotations:
    """Read a file; DataError if it is damaged."""
    content = read_json(path, _File, "labelme's JSON")
    result = Annotations(path, list(dict.fromkeys(shape.label for shape in content.shapes)))
    shapes = []
    for shape in content.shapes:
        if (draw := _area(shape)) is None:
            result.left_out[_OTHERS.get(shape.shape_type, "shapes of an unknown kind or with too few points")] += 1
        else:
            shapes.append(Shape(shape.label, draw))
    H, W = content.imageHeight, content.imageWidth
    size = (H, W) if H is not None and W is not None else None
    others = len(content.shapes) - len(shapes)
    result.frames.append(Frame((content.imagePath,), tuple(shapes), size, others=others))
    return result


def _area(shape: _Shape) -> Draw | None:
    ring = list(chain.from_iterable(shape.points))
    if shape.shape_type == "circle" and len(shape.points) == 2:  # the centre, and a point of the circle
        radius = dist(*shape.points)
        return Polygons([ellipse(shape.points[0], (radius, radius))])
    if shape.shape_type == "mask" and shape.mask and shape.points:
        return _bitmap(shape.mask, shape.points[0])
    return Polygons([ring]) if shape.shape_type == "polygon" and has_area(ring) else None


def _bitmap(text: str, corner: tuple[float, float]) -> Draw:
    """Draw a PNG in base64; `corner` is its first pixel."""

    def draw(size: Size) -> np.ndarray:
        image = decode_png(text, cv2.IMREAD_GRAYSCALE)
        return placed_at(image > 0, round(corner[0]), round(corner[1]))(size)

    return draw
