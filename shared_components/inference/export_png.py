"""Masks as PNG in CVAT's form "Segmentation mask 1.1": values are class ids, the palette has the classes' colours.

Format: https://docs.cvat.ai/docs/dataset_management/formats/format-smask.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from shared_components.common.atomic import atomically, write_text
from shared_components.inference import InferenceError
from shared_components.inference.exports import Export, class_colours, discard, write_frame
from shared_components.inference.frames import FrameStream, Shot

MASKS, COLOURS, LIST, IMAGES = "SegmentationClass", "labelmap.txt", "ImageSets/Segmentation/default.txt", "JPEGImages"


class _Png:
    def __init__(self, folder: Path, stream: FrameStream, classes: Sequence[str]) -> None:
        for name in classes:
            if ":" in name or name.startswith("#"):
                raise InferenceError(f"export png: {COLOURS} cannot contain the class {name!r}; use another format")
        self._folder, self._stream, self._classes = folder, stream, classes
        self._colours = class_colours(len(classes))
        self._list: IO[str] | None = None

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        if self._list is None:
            (self._folder / LIST).parent.mkdir(parents=True)
            self._list = (self._folder / LIST).open("w", encoding="utf-8")
        if self._stream.live:  # CVAT reads a video itself, and a stream has no file
            write_frame(self._folder / IMAGES, shot)
        picture = Image.fromarray(mask).convert("P")
        picture.putpalette(np.array(self._colours, np.uint8).tobytes())
        with atomically(self._folder / MASKS / f"{shot.path}.png") as beside:
            picture.save(beside, format="PNG")
        self._list.write(f"{shot.path}\n")

    def close(self) -> None:
        if self._list is not None:
            self._list.close()
        lines = [f"{n}:{','.join(map(str, c))}::\n" for n, c in zip(self._classes, self._colours, strict=True)]
        write_text(self._folder / COLOURS, "# label:color_rgb:parts:actions\n" + "".join(lines))

    def abandon(self) -> None:
        discard(self._list)


def open_export(folder: Path, stream: FrameStream, classes: Sequence[str]) -> Export:
    """Return the export to `SegmentationClass/<frame>.png` and `labelmap.txt`, with images for a live stream."""
    return _Png(folder, stream, classes)
