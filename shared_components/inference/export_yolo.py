"""YOLO: a text file with a polygon per region for each frame, and `data.yaml` with the classes' names.

Format: https://docs.ultralytics.com/datasets/segment. It has no colours and no background, so class 0 is the first
class after the background.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from shared_components.common.atomic import write_text
from shared_components.inference.exports import Export, write_frame
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.regions import polygons

NAME, IMAGES, LABELS = "data.yaml", "images", "labels"


class _Yolo:
    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        import pycocotools  # noqa: F401  # missing: refuse before the first frame

        self._folder, self._classes = folder, classes

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        image = write_frame(self._folder / IMAGES, shot)
        lines = [
            f"{region.class_id - 1} {' '.join(f'{share:.7g}' for share in (polygon / mask.shape[::-1]).ravel())}\n"
            for region, polygon in polygons(mask)
        ]
        # Ultralytics replaces the last folder named `images`, even if a sub-folder of the input has the name
        *before, last = image.relative_to(self._folder).parts
        place = len(before) - 1 - before[::-1].index(IMAGES)
        before[place] = LABELS
        write_text(self._folder.joinpath(*before, last).with_suffix(".txt"), "".join(lines))

    def close(self) -> None:
        config = {"train": IMAGES, "val": IMAGES, "names": dict(enumerate(self._classes[1:]))}
        write_text(self._folder / NAME, yaml.safe_dump(config, allow_unicode=True, sort_keys=False))

    def abandon(self) -> None:
        """Leave no file open."""


def open_export(folder: Path, stream: FrameStream, classes: Sequence[str]) -> Export:
    """Return the export to `images/<frame>.png`, `labels/<frame>.txt` and `data.yaml`."""
    return _Yolo(folder, classes)
