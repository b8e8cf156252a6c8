"""Label and frame volumes for label editors, frame by frame."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream, Shot

LABELS, FRAMES = "labels", "frames"


class VolumeWriter(Protocol):
    """Writer of a volume whose file appears on closing."""

    count: int

    def add(self, frame: np.ndarray, /) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Volumes(ABC):
    """Writes a label volume and a frame volume for each video; each sub-folder of images is a video.

    A volume with `most` frames continues in `<video>-2`, and so on. `classes` begin with the background.
    """

    form: str
    most = sys.maxsize

    def __init__(self, folder: Path, stream: FrameStream, classes: Sequence[str]) -> None:
        self.folder, self.classes = folder, tuple(classes)
        self._names: list[str] = []
        self._stem = stream.stem  # name of the volume outside sub-folders
        self._sequence: str | None = None
        self._open: tuple[Any, ...] = ()  # `VolumeWriter`s of labels and frames

    @abstractmethod
    def writers(self, name: str) -> tuple[VolumeWriter, VolumeWriter]:
        """Return the writers of a video's labels and frames."""

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        """Append a frame and its class ids, uint8 (H, W); InferenceError if the size changes."""
        if not self._open or shot.sequence != self._sequence:
            self._sequence = shot.sequence
            self._begin(shot.sequence or self._stem)
            self._part = 1
        elif self._open[0].count == self.most:
            self._part += 1
            self._begin(f"{shot.sequence or self._stem}-{self._part}")
        try:
            for writer, frame in zip(self._open, (mask, shot.image), strict=True):
                writer.add(frame)
        except ValueError as error:
            raise InferenceError(f"export {self.form}: {shot.path}: {error}") from None

    def _begin(self, name: str) -> None:
        self._finish()
        if name in self._names:
            raise InferenceError(f"two volumes would have the name {name!r}; rename one of the folders")
        self._names.append(name)
        self._open = self.writers(name)

    def close(self) -> None:
        """Finish all volumes."""
        self._finish()

    def abandon(self) -> None:
        """Remove unfinished volumes."""
        for writer in self._open:
            writer.abandon()
        self._open = ()

    def _finish(self) -> None:
        for writer in self._open:
            writer.close()
        self._open = ()
