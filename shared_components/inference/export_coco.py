"""COCO: one JSON with a polygon per region, or run lengths if the region has holes.

Format: https://cocodataset.org/#format-data. File names are relative to the folder of images.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from shared_components import __version__
from shared_components.inference.exports import Export, class_colours, discard, write_frame
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.regions import Region, has_hole, polygons

NAME = "annotations.json"
IMAGES = "images"


class _Coco:
    def __init__(self, folder: Path, stream: FrameStream, classes: Sequence[str]) -> None:
        from pycocotools import mask

        self._encode = mask.encode
        self._folder, self._with_frames = folder, stream.is_video
        self._header = {
            "info": {"description": f"Predictions for {stream.stem}", "version": f"surgfl {__version__}"},
            "licenses": [],
            "categories": [
                {"id": number, "name": name, "supercategory": "", "color": colour}
                for number, (name, colour) in enumerate(zip(classes, class_colours(len(classes)), strict=True))
                if number
            ],
        }
        self._annotations: IO[str] | None = None
        self._images: IO[str] | None = None  # a temporary file: its list follows the annotations
        self._counts = [0, 0]  # images and annotations

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        if self._annotations is None or self._images is None:
            self._annotations, self._images = self._open()
        H, W = mask.shape
        image = self._counts[0] + 1
        if self._with_frames:
            write_frame(self._folder / IMAGES, shot)
        self._append(self._images, 0, {"file_name": shot.file, "width": W, "height": H})
        for region, polygon in polygons(mask):
            segmentation = self._runs(region, H, W) if has_hole(region) else [polygon.ravel().tolist()]
            h, w = region.pixels.shape
            box = {"bbox": [region.x, region.y, w, h], "area": int(region.pixels.sum()), "iscrowd": 0}
            ids = {"image_id": image, "category_id": region.class_id}
            self._append(self._annotations, 1, {**ids, **box, "segmentation": segmentation})

    def close(self) -> None:
        if self._annotations is None or self._images is None:
            return
        self._annotations.write('],\n"images": [')
        self._images.seek(0)
        shutil.copyfileobj(self._images, self._annotations)
        self._annotations.write("]}\n")
        self._annotations.close()
        self._images.close()

    def abandon(self) -> None:
        discard(self._annotations, self._images)

    def _open(self) -> tuple[IO[str], IO[str]]:
        self._folder.mkdir(parents=True)
        annotations = (self._folder / NAME).open("w", encoding="utf-8")
        annotations.write(json.dumps(self._header)[:-1] + ',\n"annotations": [')
        return annotations, tempfile.TemporaryFile("w+", encoding="utf-8", dir=self._folder)

    def _append(self, file: IO[str], kind: int, entry: dict[str, Any]) -> None:
        separator = "," if self._counts[kind] else ""
        self._counts[kind] += 1
        file.write(f"{separator}\n{json.dumps({'id': self._counts[kind], **entry})}")

    def _runs(self, region: Region, height: int, width: int) -> dict[str, Any]:
        runs = self._encode(np.asfortranarray(region.in_frame(height, width)))
        return {"size": [height, width], "counts": runs["counts"].decode("ascii")}


def open_export(folder: Path, stream: FrameStream, classes: Sequence[str]) -> Export:
    """Return the export to `annotations.json`, with `images/*.png` for the frames of a video."""
    return _Coco(folder, stream, classes)
