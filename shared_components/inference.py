"""Masks and overlays for a folder of frames or a video file, one frame in memory at a time; no labels needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from shared_components.data.files import natural_order
from shared_components.evaluation import network_input

logger = logging.getLogger(__name__)

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
OVERLAYS = "overlays"
"""The kind of picture that a task draws to be looked at."""
USUAL_RATE = 25.0
"""Frames per second of the overlay video where the input does not say its own."""


class InferenceError(ValueError):
    """An input that cannot be read; the message names the file or folder and what to do."""


@dataclass(frozen=True)
class Shot:
    """One frame to predict: a name for its output files and uint8 RGB (H, W, 3)."""

    name: str
    image: np.ndarray


class FrameStream:
    """The frames of a folder, an image file or a video file, in order, read when asked for.

    Args:
        source: a folder of images (not its sub-folders), one image, or a video that OpenCV can decode.
        height: of the network's input; likewise `width`.

    Attributes:
        rate: frames per second of a video, None for images.

    Raises:
        InferenceError: the source is not given or missing, the folder has no images, the video cannot be
            opened; and while iterating, an image cannot be read.
    """

    def __init__(self, source: str | Path | None, *, height: int, width: int) -> None:
        if source is None:
            raise InferenceError("input: not given; add --input with a folder of frames or a video file")
        self.source = Path(source)
        self.height, self.width = height, width
        self.rate: float | None = None
        self._images = _images_of(self.source)
        if not self._images:
            self.rate = _rate_of(self.source)

    def __iter__(self) -> Iterator[dict[str, Tensor | Shot]]:
        """Yield {"image": float32 (1, 3, height, width) in [0, 1], "shot": Shot}."""
        for shot in self.shots():
            yield {"image": network_input(shot.image[None], self.height, self.width), "shot": shot}

    def shots(self) -> Iterator[Shot]:
        """Yield the frames as they are."""
        if self._images:
            yield from (Shot(path.stem, _read(path)) for path in self._images)
        else:
            yield from _video_shots(self.source)


class PredictionFolder:
    """Write the pictures of every frame, and for a video an overlay video too.

    Files: `<kind>/<name>.png` of what a task's `files` gives, such as `masks` (one channel, class ids) and
    `overlays`; `overlay.mp4`.

    Args:
        folder: made where it does not exist.
        rate: frames per second of the overlay video; None for no video.
    """

    def __init__(self, folder: str | Path, *, rate: float | None = None) -> None:
        self.folder = Path(folder)
        self._rate = rate
        self._count = 0
        self._video: cv2.VideoWriter | None = None

    def add(self, name: str, pictures: Mapping[str, np.ndarray]) -> None:
        """Write one frame: by kind, uint8 RGB (H, W, 3) or one channel (H, W) of uint8 or uint16."""
        for kind, picture in pictures.items():
            path = self.folder / kind / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            bgr = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
            if not cv2.imwrite(str(path), bgr):
                raise OSError(f"{path}: could not be written; check the disk's space and the folder's rights")
        self._count += 1
        if self._rate is not None:
            self._append(cv2.cvtColor(pictures[OVERLAYS], cv2.COLOR_RGB2BGR), self._rate)

    def close(self) -> None:
        """Finish the video and say what was written."""
        if self._video is not None:
            self._video.release()
        logger.info("%s: wrote the predictions of %d frames", self.folder, self._count)

    def _append(self, picture: np.ndarray, rate: float) -> None:
        if self._video is None:
            path = self.folder / "overlay.mp4"
            size = (picture.shape[1], picture.shape[0])
            self._video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
            if not self._video.isOpened():
                logger.warning(
                    "%s: OpenCV cannot write MPEG-4 video here; the PNG overlays are written", path
                )
                self._rate = None
                return
        self._video.write(picture)


def _images_of(source: Path) -> list[Path]:
    if not source.exists():
        raise InferenceError(f"input {source} does not exist; name a folder of frames or a video file")
    if source.is_file():
        return [source] if source.suffix.lower() in IMAGES else []
    found = [path for path in source.iterdir() if path.suffix.lower() in IMAGES]
    if not found:
        raise InferenceError(
            f"input folder {source} has no images ({', '.join(IMAGES)}); name the folder that holds the frames"
        )
    if len({path.stem for path in found}) < len(found):
        raise InferenceError(
            f"input folder {source} has images that differ in their ending alone, whose masks would overwrite "
            "each other; keep one of each"
        )
    return sorted(found, key=lambda path: natural_order(path.name))


def _read(path: Path) -> np.ndarray:
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise InferenceError(f"image {path} cannot be read; replace it or move it out of the folder")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _rate_of(path: Path) -> float:
    capture = cv2.VideoCapture(str(path))
    opened, rate = capture.isOpened() and capture.grab(), capture.get(cv2.CAP_PROP_FPS)
    capture.release()
    if not opened:
        raise InferenceError(
            f"video {path} cannot be read; check it with another player, or convert it to H.264 MP4 or a folder "
            "of images"
        )
    return rate if rate > 0 else USUAL_RATE


def _video_shots(path: Path) -> Iterator[Shot]:
    capture = cv2.VideoCapture(str(path))
    expected, count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0
    try:
        while True:
            read, image = capture.read()
            if not read:
                break
            yield Shot(f"frame_{count:06d}", cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
            count += 1
    finally:
        capture.release()
    if count < expected:
        logger.warning("video %s ends after %d of the %d frames that it announces", path, count, expected)
