"""Read YOLO's segmentation labels: `data.yaml` with the classes' names, and a text file per image.

Format: https://docs.ultralytics.com/datasets/segment. A line is the class's number and a polygon's points, as shares of
the width and height; five numbers are a box. Roboflow writes `train/labels`, Ultralytics and CVAT `labels/train`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from shared_components.data.annotations.shapes import AGAIN, Annotations, Frame, Polygons, Shape, first_repeated
from shared_components.data.files.images import DataError, folders_below, read_text, read_yaml_file

TITLE = "YOLO"
_LABELS, _IMAGES = "labels", "images"
_MOST_BYTES = 1 << 24  # of an image's text file


def recognises(head: str) -> bool:
    return any(line.startswith("names:") for line in head.splitlines())


def read(path: Path) -> Annotations:
    """Read `data.yaml` and the text files in all folders `labels` below its folder; DataError if one is wrong."""
    names = _names(read_yaml_file(path, error=ValueError), path)
    result = Annotations(path, list(names.values()), smaller_wins=True)
    for folder, files in folders_below(path.parent):
        parts = folder.relative_to(path.parent).parts
        if _LABELS not in parts:
            continue
        place = len(parts) - 1 - parts[::-1].index(_LABELS)
        images = "/".join([*parts[:place], _IMAGES, *parts[place + 1 :]])
        for name in files:
            if name.endswith(".txt"):
                result.frames.append(_frame(folder / name, f"{images}/{name[:-4]}", names, result))
    if not result.frames:
        what = f"has no text files in a folder {_LABELS!r} beside or below it"
        raise DataError(path, what, f"put the labels of YOLO there, such as train/{_LABELS}/frame_1.txt")
    return result


def _names(config: Any, path: Path) -> dict[int, str]:
    names = config.get("names") if isinstance(config, dict) else None
    table = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(table, dict) or not table or not all(isinstance(key, int) for key in table):
        raise DataError(path, f"has 'names' {names!r:.80}", "write the classes' names there, such as [grasper, hook]")
    texts = {number: str(name) for number, name in table.items()}
    if repeated := first_repeated(texts.values()):
        raise DataError(path, f"has 'names' with two classes {repeated!r:.80}", "give one of them another name")
    return texts


def _frame(path: Path, image: str, names: dict[int, str], result: Annotations) -> Frame:
    shapes, others = [], 0
    for number, line in enumerate(read_text(path, _MOST_BYTES).splitlines(), 1):
        if not (words := line.split()):
            continue
        try:
            name = names[int(words[0])]
            points = np.array(words[1:], np.float64).reshape(-1, 2)
        except (ValueError, KeyError) as error:
            what = f"has in line {number} no class of {', '.join(names.values())} with pairs of numbers ({line:.60})"
            raise DataError(path, what, AGAIN) from error
        if len(points) < 3:
            others += 1
            result.left_out["boxes"] += 1
        else:
            shapes.append(Shape(name, Polygons([points.ravel().tolist()], whole=1)))
    return Frame((image,), tuple(shapes), others=others)
