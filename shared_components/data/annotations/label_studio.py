"""Read Label Studio's exports JSON and JSON-MIN: brush masks, bitmasks, polygons and ellipses.

Format: https://labelstud.io/guide/export#Label-Studio-JSON-format-of-annotated-tasks. Points are in percent. A brush is
an RGBA image in the form of https://github.com/thi-ng/umbrella/tree/develop/packages/rle-pack.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote, urlsplit

import cv2
import msgspec
import numpy as np
from msgspec import Meta, Struct, field

from shared_components.data.annotations.shapes import (
    Annotations,
    Draw,
    Frame,
    Polygons,
    Shape,
    Side,
    decode_png,
    ellipse,
    number_of,
    read_json,
)
from shared_components.data.files.images import MOST_PIXELS, DataError, Size

TITLE = "Label Studio"
_KINDS = {
    "polygonlabels": "polygon", "brushlabels": "brush", "ellipselabels": "ellipse",
    "rectanglelabels": "boxes", "keypointlabels": "points", "bitmasklabels": "bitmask", "vectorlabels": "lines",
}  # fmt: skip
_AREAS = ("polygon", "brush", "bitmask", "ellipse")
_BITMASK = "data:image/png;base64,"
_BY_CONTENT = {
    "rle": "brush",
    "imageDataURL": "bitmask",
    "radiusX": "ellipse",
    "points": "polygon",
    "width": "boxes",
    "x": "points",
}
"""Kinds of the regions of a control `Labels`, by a key of their value."""
_CHANNELS = 4
_HASH = re.compile(r"[0-9a-f]{8}-(?=.)")  # that an upload puts before a file's name


class _Result(Struct):
    type: str = ""
    value: dict[str, Any] = field(default_factory=dict)
    original_width: Side | None = None
    original_height: Side | None = None
    image_rotation: float = 0


class _Annotation(Struct):
    result: list[_Result] = field(default_factory=list)
    was_cancelled: bool = False
    ground_truth: bool = False
    updated_at: str = ""


class _Task(Struct):
    id: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    annotations: list[_Annotation] = field(default_factory=list)
    completions: list[_Annotation] = field(default_factory=list)  # name before version 1.0
    file_upload: str | None = None


_Tasks = Annotated[list[_Task], Meta(min_length=1)]


class _RowId(Struct):
    annotation_id: int | None = None  # only in JSON-MIN


def recognises(head: str) -> bool:
    if not head.lstrip().startswith("["):
        return False
    return '"annotation_id"' in head or ('"data"' in head and ('"annotations"' in head or '"completions"' in head))


def read(path: Path) -> Annotations:
    """Read a file; DataError if it is damaged. If a task has several annotations, the ground truth or newest counts."""
    result = Annotations(path)
    names: dict[str, None] = {}
    for task in _tasks(path):
        given = [*task.annotations, *task.completions]
        valid = [annotation for annotation in given if not annotation.was_cancelled]
        result.left_out["skipped or repeated annotations of a task"] += len(given) - bool(valid)
        if not valid:
            continue
        chosen = max(valid, key=lambda annotation: (annotation.ground_truth, annotation.updated_at))
        frame = _frame(task, chosen, result)
        names |= dict.fromkeys(shape.name for shape in frame.shapes)
        result.frames.append(frame)
    result.classes = list(names)
    return result


def _tasks(path: Path) -> Sequence[_Task]:
    """Return the tasks of JSON, or of JSON-MIN: a row per annotation, with the regions of each control by its name."""
    form = "Label Studio's JSON or JSON-MIN"
    if any(row.annotation_id is None for row in read_json(path, list[_RowId], form)):
        return read_json(path, _Tasks, form)
    tasks: dict[Any, _Task] = {}
    for place, row in enumerate(read_json(path, list[dict[str, Any]], form)):
        number = row.get("id", f"row {place}")
        task = tasks.setdefault(number, _Task(number if isinstance(number, int) else place, row))
        lists = [value for value in row.values() if isinstance(value, list)]
        values = [value for control in lists for value in control if isinstance(value, dict)]
        task.annotations.append(
            _Annotation([_region(value) for value in values], updated_at=str(row.get("updated_at", "")))
        )
    return list(tasks.values())


def _region(value: dict[str, Any]) -> _Result:
    kind = next((key for key in value if key in (*_KINDS, "labels")), "")
    size = {side: value.get(side) for side in ("original_width", "original_height")}
    return msgspec.convert({"type": kind, "value": value, **size}, _Result)


def _frame(task: _Task, annotation: _Annotation, result: Annotations) -> Frame:
    shapes: list[Shape] = []
    sizes: set[Size] = set()
    others = 0
    for region in annotation.result:
        if (kind := _kind(region)) is None:  # choices, ratings, relations
            continue
        labels = region.value.get(region.type) or [""]
        where = f"task {task.id} has a region of {labels[0]!r:.60}"
        if kind not in _AREAS:
            result.left_out[kind] += 1
            others += 1
            continue
        if region.image_rotation:
            remedy = "turn the image file, and annotate it again without the rotation"
            raise DataError(result.path, f"{where} on an image turned by {region.image_rotation} degrees", remedy)
        if region.original_height and region.original_width:
            sizes.add((region.original_height, region.original_width))
        try:
            shapes.append(Shape(str(labels[0]), _area(kind, region.value)))
        except (ValueError, TypeError) as error:
            raise DataError(result.path, f"{where} that is damaged ({error})", "export the tasks again") from error
    if len(sizes) > 1:
        raise DataError(result.path, f"task {task.id} has regions of images of several sizes", "annotate it again")
    size = sizes.pop() if sizes else None
    return Frame(_image_names(task), tuple(shapes), size, others=others)


def _kind(region: _Result) -> str | None:
    if region.type == "labels":
        return next((kind for key, kind in _BY_CONTENT.items() if key in region.value), None)
    return _KINDS.get(region.type)


def _image_names(task: _Task) -> tuple[str, ...]:
    """Return possible names of a task's image: from its data, and the name of the uploaded file without its hash."""
    paths = []
    for text in [value for value in task.data.values() if isinstance(value, str)] + [task.file_upload or ""]:
        parts = urlsplit(text)
        local = parse_qs(parts.query).get("d")  # /data/local-files/?d=op_1/frame_1.jpg
        paths.append(local[0] if local else unquote(parts.path))
    cut = [f"{path.rpartition('/')[0]}/{_HASH.sub('', path.rpartition('/')[2], count=1)}" for path in paths if path]
    return tuple(dict.fromkeys([*filter(None, paths), *cut]))


def _area(kind: str, value: dict[str, Any]) -> Draw:
    if kind == "brush":
        rle = value.get("rle")
        return _brush(bytes(rle if isinstance(rle, list) else []))
    if kind == "bitmask":
        return _bitmask(str(value.get("imageDataURL", "")))
    if kind == "ellipse":
        x, y, across, down = (number_of(value, key) for key in ("x", "y", "radiusX", "radiusY"))
        turn = float(value.get("rotation", 0))
        return lambda size: Polygons([_ellipse((x, y), (across, down), turn, size)])(size)
    points = np.array(value.get("points"), np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3:
        raise ValueError("a polygon has at least three points")
    return Polygons([points.ravel().tolist()], whole=100)


def _ellipse(centre: tuple[float, float], radii: tuple[float, float], degrees: float, size: Size) -> list[float]:
    H, W = size[0] / 100, size[1] / 100
    return ellipse((centre[0] * W, centre[1] * H), (radii[0] * W, radii[1] * H), degrees)


def _bitmask(text: str) -> Draw:
    """Draw the opaque pixels of a PNG in a data URL, https://labelstud.io/tags/bitmasklabels."""

    def draw(size: Size) -> np.ndarray:
        image = decode_png(text.removeprefix(_BITMASK), cv2.IMREAD_UNCHANGED)
        if image.shape != (*size, _CHANNELS):
            raise ValueError(f"a bitmask has the shape {image.shape}, not {(*size, _CHANNELS)}")
        return image[..., _CHANNELS - 1] > 0

    return draw


def _brush(data: bytes) -> Draw:
    def draw(size: Size) -> np.ndarray:
        H, W = size
        alpha = unpacked(data, H * W * _CHANNELS)[_CHANNELS - 1 :: _CHANNELS]
        return alpha.reshape(H, W) > 0

    return draw


class _Bits:
    """Reads numbers of any width from bytes, highest bit first."""

    def __init__(self, data: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8))
        self._place = 0

    def words(self, width: int, count: int = 1) -> np.ndarray:
        """Return numbers of `width` bits; ValueError at the end of the data."""
        stop = self._place + width * count
        if stop > len(self._bits):
            raise ValueError("a brush mask is cut off")
        bits = self._bits[self._place : stop].reshape(count, width)
        self._place = stop
        return bits @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))

    def word(self, width: int) -> int:
        return int(self.words(width)[0])


def unpacked(data: bytes, length: int) -> np.ndarray:
    """Return the values of packed run lengths, unsigned (length,); ValueError for another length or a cut-off text.

    The header has the number of values (32 bits), their width less 1 (5 bits), and four widths of lengths less 1 (4
    bits each). A run begins with a bit for "one value, repeated", the place of the width of its length (2 bits), and
    its length less 1.
    """
    bits = _Bits(data)
    if length > MOST_PIXELS * _CHANNELS or (count := bits.word(32)) != length:
        raise ValueError(f"a brush mask does not have the {length} values of its image")
    width = bits.word(5) + 1
    widths = [bits.word(4) + 1 for _ in range(4)]
    values = np.zeros(count, np.uint8 if width <= 8 else np.uint32)
    place = 0
    while place < count:
        repeated, size = bits.word(1), widths[bits.word(2)]
        stop = place + bits.word(size) + 1
        if stop > count:
            raise ValueError("a brush mask has more values than its image")
        values[place:stop] = bits.word(width) if repeated else bits.words(width, stop - place)
        place = stop
    return values
