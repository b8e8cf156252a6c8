"""Write rendered frames as lossless PNG or high-quality JPEG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from shared_components.common.atomic import write_bytes
from shared_components.common.drawing.pictures import encoded
from shared_components.scenes.scene import SceneFrame

Array = np.ndarray
_FAST_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 1)
_JPEG = (
    cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
)  # fmt: skip


@dataclass(frozen=True)
class Shot:
    """One frame to write: its number in the video, and whether its labels are written, too."""

    number: int
    frame: SceneFrame
    labelled: bool = True


Written = Iterator[tuple[SceneFrame, str]]
"""Frames as they pass, each with its file stem."""


def write_png(path: Path, image: Array) -> None:
    """Write a grey or RGB image quickly (compression level 1); OSError names the file."""
    _write(path, image, _FAST_PNG)


def write_image(path: Path, image: Array) -> None:
    """Write an image of the kind that the path ends in: .png, or fine .jpg; OSError names the file."""
    _write(path, image, _JPEG if path.suffix == ".jpg" else _FAST_PNG)


def _write(path: Path, image: Array, options: Sequence[int]) -> None:
    write_bytes(path, encoded(np.ascontiguousarray(image), path.suffix, options))


def write_pairs(
    shots: Iterable[Shot], stem: str, images: Path, targets: Path, target: Callable[[SceneFrame], Array]
) -> Written:
    """Write every frame to the folder `images` and its target to `targets`; `stem` formats a number.

    Images are of the kind that `stem` ends in: .png, or fine .jpg.
    """
    for shot in shots:
        image = images / stem.format(shot.number)
        write_image(image, shot.frame.image)
        if shot.labelled:
            write_png(targets / f"{image.stem}.png", target(shot.frame))
        yield shot.frame, image.stem
