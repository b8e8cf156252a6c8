"""Label volumes kept in memory packed: read from disk once, in order, since a compressed file gives nothing else."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np

from shared_components.data.custom.ids import Ids, Value, counts, unknown_values
from shared_components.data.files import Axes, DataError, Size
from shared_components.data.nifti import label_frames, label_shape

_KEPT = 256  # volumes; a mask takes some kilobytes, packed
_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class Volume:
    """One volume.

    Attributes:
        path: its file.
        size: (H, W).
        packed: each frame.
        pixels: how many of each value; `frames_with`: in how many frames.
        labelled: the frames with any label, counted from 0.
    """

    path: Path
    size: Size
    packed: tuple[bytes, ...]
    pixels: Counter[Value]
    frames_with: Counter[Value]
    labelled: tuple[int, ...]

    def frame(self, place: int) -> np.ndarray:
        """Return one frame, uint16 (H, W)."""
        if not 0 <= place < len(self.packed):
            raise DataError(self.path, f"has no frame {place}", "export the volume again")
        return np.frombuffer(zlib.decompress(self.packed[place]), np.uint16).reshape(self.size)

    def refuse_unknown(self, ids: Ids) -> None:
        """Raise one DataError for all values of the volume that the table does not have."""
        known = {value for value, _ in ids.table}
        if odd := {value: count for value, count in self.pixels.items() if value not in known}:
            most = max(self.frames_with[value] for value in odd)
            raise unknown_values(self.path, odd, f" (in {most} of {len(self.packed)} frames)")


def packed_volume(path: Path, *, axes: Axes) -> Volume:
    """Read a volume, or return it as it was read before.

    Raises:
        DataError: as `nifti.label_frames`.
    """
    try:
        about = path.stat()
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "put it back or correct 'masks'") from error
    with _LOCK:  # several threads ask for frames of one volume
        return _packed(path, axes, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=_KEPT)
def _packed(path: Path, axes: Axes, changed: int, length: int) -> Volume:
    _, H, W = label_shape(path, axes=axes)
    packed, labelled = [], []
    pixels, frames_with = Counter[Value](), Counter[Value]()
    for place, frame in enumerate(label_frames(path, axes=axes)):
        found = counts(frame)
        pixels.update(found)
        frames_with.update(found.keys())
        packed.append(zlib.compress(np.ascontiguousarray(frame).tobytes(), 1))
        if set(found) - {0}:
            labelled.append(place)
    return Volume(path, (H, W), tuple(packed), pixels, frames_with, tuple(labelled))
