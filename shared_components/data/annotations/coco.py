"""Read COCO's instance annotations, as COCO, CVAT, Roboflow, FiftyOne and Label Studio write them.

Format: https://cocodataset.org/#format-data. `segmentation` is a list of polygons, or run lengths by column.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from msgspec import Struct

from shared_components.data.annotations.shapes import (
    AGAIN,
    Annotations,
    Count,
    Draw,
    Frame,
    Polygons,
    Shape,
    Side,
    first_repeated,
    has_area,
    pixels_of_runs,
    read_json,
)
from shared_components.data.files.images import DataError, Size

TITLE = "COCO"


class _Image(Struct):
    id: int | str
    file_name: str
    width: Side
    height: Side


class _Category(Struct):
    id: int
    name: str


class _Runs(Struct):
    size: tuple[Side, Side]
    counts: str | list[Count]


class _Annotation(Struct):
    image_id: int | str
    category_id: int
    segmentation: list[list[float]] | _Runs | None = None
    iscrowd: int | bool = 0


class _File(Struct):
    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Annotation]


def recognises(head: str) -> bool:
    return head.lstrip().startswith("{") and all(f'"{key}"' in head for key in ("images", "annotations", "categories"))


def read(path: Path) -> Annotations:
    """Read a file; DataError if it is damaged, or an annotation names an unknown image or category."""
    content = read_json(path, _File, "COCO's instance JSON")
    names = {category.id: category.name for category in content.categories}
    images = {image.id: image for image in content.images}
    _refuse_repeated(content, path)
    result = Annotations(path, [category.name for category in content.categories], smaller_wins=True)
    shapes: defaultdict[int | str, list[Shape]] = defaultdict(list)
    others: defaultdict[int | str, int] = defaultdict(int)
    for number, annotation in enumerate(content.annotations):
        if annotation.image_id not in images or annotation.category_id not in names:
            what = f"annotation {number} names image {annotation.image_id!r} and category {annotation.category_id}"
            raise DataError(path, f"{what}, of which one is not in the file", AGAIN)
        draw = _area(annotation)
        if draw is None:
            result.left_out["boxes"] += 1
            others[annotation.image_id] += 1
            continue
        result.notes["crowd regions"] += bool(annotation.iscrowd)
        shapes[annotation.image_id].append(Shape(names[annotation.category_id], draw))
    for key, image in images.items():
        size = image.height, image.width
        result.frames.append(Frame((image.file_name,), tuple(shapes[key]), size, others=others[key]))
    return result


def _refuse_repeated(content: _File, path: Path) -> None:
    """Raise a DataError for a repeated id of images or categories, or a repeated name of annotated categories."""
    shown = {annotation.category_id for annotation in content.annotations}
    for key, what in (
        ("images", first_repeated(image.id for image in content.images)),
        ("categories", first_repeated(category.id for category in content.categories)),
    ):
        if what is not None:
            raise DataError(path, f"has two {key} with the id {what!r}", AGAIN)
    # Roboflow writes a category without annotations that may have the name of a class
    if (name := first_repeated(category.name for category in content.categories if category.id in shown)) is not None:
        raise DataError(path, f"has two categories {name!r:.80} with annotations", "give one of them another name")


def _area(annotation: _Annotation) -> Draw | None:
    """Return the area of an annotation; None for an annotation with only a box."""
    given = annotation.segmentation
    if isinstance(given, _Runs):
        return _runs(given)
    rings = [ring for ring in given or () if has_area(ring)]
    return Polygons(rings) if rings else None


def _runs(given: _Runs) -> Draw:
    def draw(size: Size) -> np.ndarray:
        if given.size != size:
            of = f"of {given.size[1]}x{given.size[0]}, and the image of {size[1]}x{size[0]}"
            raise ValueError(f"run lengths are {of}")
        counts = given.counts if isinstance(given.counts, list) else unpacked(given.counts)
        return pixels_of_runs(counts, size, by_column=True)

    return draw


def unpacked(text: str) -> list[int]:
    """Return the run lengths of COCO's compressed form; ValueError if it is cut off or another text.

    Each character has 5 bits of a number, lowest bits first, and a bit that is set if more follow. From the fourth
    number on, the difference from the number two places before is stored. pycocotools does not check the text.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text.encode():
        bits = character - 48
        if not 0 <= bits < 64 or shift > 40:
            raise ValueError("compressed run lengths have a character that does not belong there")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift  # the sign
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("compressed run lengths are cut off")
    return runs
