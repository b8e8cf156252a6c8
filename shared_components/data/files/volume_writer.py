"""Write a video's labels or frames into one volume, frame by frame, with one frame in memory."""

import gzip
import os
import shutil
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from shared_components.common.atomic import atomically

COLOURS = np.dtype([(channel, np.uint8) for channel in "RGB"])


class VolumeWriter(ABC):
    """Writer of a volume: a header, then the frames; the file appears on closing, and not after an error.

    Attributes:
        endings: Endings of the path. The file is compressed as a whole, header included, if it ends in `.gz`.
        most: Maximum number of frames.
        packed: Whether the frames are compressed.
        count: Number of frames so far.
    """

    endings: tuple[str, ...]
    most: int

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not self.path.name.endswith(self.endings):
            raise ValueError(f"{path}: a label volume's name ends in {' or '.join(self.endings)}; rename it")
        self.count = 0
        self._size: tuple[int, ...] = ()
        self._type: np.dtype[Any] = np.dtype(np.uint8)
        self._whole = self.path.name.endswith(".gz")
        self.packed = self._whole
        # The header comes first and has the number of frames, so frames wait in a file beside.
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.frames")
        self._files: list[IO[bytes] | gzip.GzipFile] = []

    @abstractmethod
    def header(self, size: tuple[int, ...], count: int, kind: np.dtype[Any]) -> bytes:
        """Return the header for `count` frames of `size` (H, W) with values of type `kind`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close() if error is None else self.abandon()

    def close(self) -> None:
        """Write the file; ValueError if there are no frames."""
        try:
            if not self._files:
                raise ValueError(f"{self.path}: there are no frames to write; give at least one")
            for file in self._files:
                file.close()
            header = self.header(self._size, self.count, self._type)
            with atomically(self.path) as beside, beside.open("wb") as out, self._part.open("rb") as frames:
                out.write(gzip.compress(header, mtime=0) if self._whole else header)
                shutil.copyfileobj(frames, out)  # a gzip file may have several members
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Remove temporary files; an earlier volume stays."""
        for file in self._files:
            with suppress(OSError):  # a full disk refuses the buffered rest, too
                file.close()
        self._part.unlink(missing_ok=True)

    def _append(self, frame: np.ndarray) -> None:
        if self.count >= self.most:
            what = f"a volume {self.endings[0]} has at most {self.most} frames"
            raise ValueError(f"{self.path}: {what}; cut the video in parts, or take every n-th frame")
        # (H, W) in C order equals (W, H) in Fortran order, the order of NIfTI and NRRD
        self._files[0].write(np.ascontiguousarray(frame).tobytes())
        self.count += 1

    def _begin(self, size: tuple[int, ...], kind: np.dtype[Any]) -> None:
        self._size, self._type = size, kind
        self._part.parent.mkdir(parents=True, exist_ok=True)
        raw = self._part.open("wb")
        self._files = [gzip.GzipFile("", "wb", 6, raw, mtime=0), raw] if self.packed else [raw]


class LabelVolumeWriter(VolumeWriter):
    """Writer of labels.

    ValueError for another ending of the path, no masks, masks of several sizes, values that are no labels, or too many
    frames.
    """

    def add(self, mask: np.ndarray) -> None:
        """Append a frame (H, W) of whole numbers up to 255, or up to 65535 in types of more than 8 bits."""
        mask = np.asarray(mask)
        if not self._files:
            self._begin(mask.shape, np.dtype(np.uint8 if mask.dtype.itemsize == 1 else np.uint16))
        if mask.ndim != 2 or mask.shape != self._size or not mask.size:
            what = f"has shape {mask.shape}, the first {self._size}"
            raise ValueError(f"{self.path}: frame {self.count} {what}; give masks (height, width) of one size")
        largest = np.iinfo(self._type).max
        if mask.dtype.kind not in "iub" or mask.min() < 0 or mask.max() > largest:
            what = f"has {mask.dtype} values from {mask.min()} to {mask.max()}"
            raise ValueError(f"{self.path}: frame {self.count} {what}; labels are whole numbers from 0 to {largest}")
        self._append(mask.astype(self._type.newbyteorder("<")))


class PictureVolumeWriter(VolumeWriter):
    """Writer of colour frames, 3 bytes per pixel."""

    def add(self, picture: np.ndarray) -> None:
        """Append a frame, uint8 RGB (H, W, 3); ValueError for another form or size, or too many frames."""
        if not self._files:
            self._begin(picture.shape[:2], COLOURS)
        if picture.dtype != np.uint8 or picture.shape != (*self._size, 3) or not picture.size:
            what = f"is {picture.dtype} of shape {picture.shape}, the first (height, width) is {self._size}"
            raise ValueError(f"{self.path}: frame {self.count} {what}; give uint8 pictures (H, W, 3) of one size")
        self._append(picture)
