"""labelme: a JSON with a polygon per region beside a PNG of each frame, and the classes' names and colours.

Format: https://github.com/wkentaro/labelme, `labelme/_label_file.py`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from shared_components.common.atomic import write_text
from shared_components.inference.exports import Export, class_colours, write_frame
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.regions import polygons

LABELS, CONFIG = "labels.txt", "labelme.yaml"
_VERSION = "5.4.1"  # of the format


class _Labelme:
    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        import pycocotools  # noqa: F401  # missing: refuse before the first frame

        self._folder, self._classes = folder, classes

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        image = write_frame(self._folder, shot)
        shapes = [
            {"label": self._classes[region.class_id], "points": polygon.tolist(), "group_id": None, "description": "",
             "shape_type": "polygon", "flags": {}}
            for region, polygon in polygons(mask)
        ]  # fmt: skip
        H, W = mask.shape
        size = {"imageData": None, "imageHeight": H, "imageWidth": W}
        content = {"version": _VERSION, "flags": {}, "shapes": shapes, "imagePath": image.name, **size}
        write_text(image.with_suffix(".json"), json.dumps(content, indent=1) + "\n")

    def close(self) -> None:
        write_text(self._folder / LABELS, "".join(f"{name}\n" for name in self._classes[1:]))
        colours = dict(zip(self._classes[1:], map(list, class_colours(len(self._classes))[1:]), strict=True))
        config = {"shape_color": "manual", "label_colors": colours}
        write_text(self._folder / CONFIG, yaml.safe_dump(config, allow_unicode=True, sort_keys=False))

    def abandon(self) -> None:
        """Leave no file open."""


def open_export(folder: Path, stream: FrameStream, classes: Sequence[str]) -> Export:
    """Return the export to `<frame>.json` and `<frame>.png`, `labels.txt` and the configuration `labelme.yaml`."""
    return _Labelme(folder, classes)
