"""CVAT: `annotations.xml` in the form "CVAT for images 1.1", with a mask per region, and the labels of a new task.

Format: https://docs.cvat.ai/docs/manual/advanced/xml_format. CVAT finds the images of a task by their names, and the
frames of a video by their numbers.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from xml.etree import ElementTree as ET  # nosec B405 # it only writes

import numpy as np

from shared_components.common.atomic import write_text
from shared_components.common.drawing.palette import css
from shared_components.inference.exports import Export, class_colours, discard, write_frame
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.regions import Region, regions

NAME, LABELS = "annotations.xml", "labels.json"
IMAGES = "images"


class _Cvat:
    def __init__(self, folder: Path, stream: FrameStream, classes: Sequence[str]) -> None:
        self._folder, self._stream, self._classes = folder, stream, classes
        colours = [css(colour) for colour in class_colours(len(classes))]
        self._labels = [
            {"name": name, "color": colour, "type": "any", "attributes": list[str]()}
            for name, colour in zip(classes[1:], colours[1:], strict=True)
        ]
        self._file: IO[str] | None = None
        self._count = 0

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        if self._file is None:
            self._file = self._open()
        if self._stream.live:  # CVAT reads a video itself, and a stream has no file
            write_frame(self._folder / IMAGES, shot)
        H, W = mask.shape
        number = self._count if shot.number is None else shot.number
        image = ET.Element("image", id=str(number), name=shot.file, width=str(W), height=str(H))
        for region in regions(mask):
            ET.SubElement(image, "mask", _attributes(region, self._classes[region.class_id]))
        self._file.write(ET.tostring(image, encoding="unicode") + "\n")
        self._count += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.write("</annotations>\n")
            self._file.close()
            write_text(self._folder / LABELS, json.dumps(self._labels, indent=1, ensure_ascii=False) + "\n")

    def abandon(self) -> None:
        discard(self._file)

    def _open(self) -> IO[str]:
        meta = ET.Element("meta")
        task = ET.SubElement(meta, "task")
        ET.SubElement(task, "name").text = self._stream.stem
        labels = ET.SubElement(task, "labels")
        for entry in self._labels:
            label = ET.SubElement(labels, "label")
            for key in ("name", "color", "type"):
                ET.SubElement(label, key).text = str(entry[key])
        self._folder.mkdir(parents=True)
        file = (self._folder / NAME).open("w", encoding="utf-8")
        header = '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n'
        file.write(header + ET.tostring(meta, encoding="unicode") + "\n")
        return file


def _attributes(region: Region, name: str) -> dict[str, str]:
    h, w = region.pixels.shape
    place = {"left": region.x, "top": region.y, "width": w, "height": h, "z_order": 0}
    runs = ", ".join(map(str, run_lengths(region.pixels)))
    return {"label": name, "source": "auto", "occluded": "0", "rle": runs} | {k: str(v) for k, v in place.items()}


def run_lengths(pixels: np.ndarray) -> list[int]:
    """Return the lengths of runs in a bool mask (h, w), row by row; the first run is of background, maybe of none."""
    flat = pixels.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs: list[int] = np.diff(changes, prepend=0, append=flat.size).tolist()
    return [0, *runs] if flat[0] else runs


def open_export(folder: Path, stream: FrameStream, classes: Sequence[str]) -> Export:
    """Return the export to `annotations.xml` and `labels.json`, with `images/*.png` for a live stream."""
    return _Cvat(folder, stream, classes)
