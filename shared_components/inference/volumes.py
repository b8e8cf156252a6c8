"""NIfTI export for label editors: per video a label volume and a frame volume, and the label names.

ITK-SNAP and 3D Slicer open these files. `dataset: nifti` reads the corrected masks for training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared_components.common.atomic import write_text
from shared_components.core.shipped_weights import sha256_of
from shared_components.data.files.label_names import described
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream, Shot

if TYPE_CHECKING:  # nibabel is imported only to write volumes
    from shared_components.data.files.nifti import LabelWriter, PictureWriter

LABELS, FRAMES, NAMES = "labels", "frames", "labels.txt"


class Volumes:
    """Writes volumes into a folder, frame by frame.

    Files: `labels/<video>.nii.gz` with class ids, `frames/<video>.nii` with colours, and `labels.txt` with the names
    and colours of the classes for ITK-SNAP. Each sub-folder of images is a video. A live stream that exceeds a
    volume continues in `<video>-2`, and so on. `classes` begin with the background. Raises
    InferenceError if a video has more frames than a volume can contain.
    """

    def __init__(self, folder: Path, stream: FrameStream, classes: Sequence[str]) -> None:
        from shared_components.data.files.nifti import MOST_FRAMES

        if stream.is_video and (stream.total or 0) > MOST_FRAMES:  # several volumes would look like several operations
            least = -(-(stream.total or 0) // MOST_FRAMES) * stream.every
            raise InferenceError(
                f"{stream.source} has {stream.total:,} frames to segment, and a NIfTI volume takes {MOST_FRAMES:,}; "
                f"use --every {least}"
            )
        self._folder, self._classes = folder, tuple(classes)
        self._names: list[str] = []
        self._stem = stream.stem  # name of the volume outside sub-folders
        self._sequence: str | None = None
        self._open: tuple[LabelWriter, PictureWriter] | None = None

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        """Append a frame and its class ids, uint8 (H, W); InferenceError if the size changes."""
        from shared_components.data.files.nifti import MOST_FRAMES

        if self._open is None or shot.sequence != self._sequence:
            self._sequence = shot.sequence
            self._begin(shot.sequence or self._stem)
            self._part = 1
        elif self._open[0].count == MOST_FRAMES:
            self._part += 1
            self._begin(f"{shot.sequence or self._stem}-{self._part}")
        assert self._open is not None
        labels, frames = self._open
        try:
            labels.add(mask)
            frames.add(shot.image)
        except ValueError as error:
            raise InferenceError(f"--nifti: {shot.path}: {error}") from None

    def _begin(self, name: str) -> None:
        from shared_components.data.files.nifti import LabelWriter, PictureWriter

        self._finish()
        if name in self._names:
            raise InferenceError(f"two volumes would have the name {name!r}; rename one of the folders")
        self._names.append(name)
        labels, frames = self._folder / LABELS / f"{name}.nii.gz", self._folder / FRAMES / f"{name}.nii"
        self._open = LabelWriter(labels), PictureWriter(frames)

    def close(self) -> None:
        """Finish all volumes."""
        self._finish()
        write_text(self._folder / NAMES, described(dict(enumerate(self._classes))))

    def abandon(self) -> None:
        """Remove unfinished volumes."""
        for writer in self._open or ():
            writer.abandon()
        self._open = None

    def _finish(self) -> None:
        for writer in self._open or ():
            writer.close()
        self._open = None


def label_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every label file and the size of every frame file (frames are large), by relative path.

    Hidden files are ignored.
    """
    hashes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        is_frames = folder / FRAMES in path.parents
        hashes[path.relative_to(folder).as_posix()] = str(path.stat().st_size) if is_frames else sha256_of(path)
    return hashes


def refuse_corrected(folder: Path, hashes: Any) -> None:
    """Raise InferenceError if files were changed or added since `label_hashes` were recorded."""
    known = hashes if isinstance(hashes, dict) else {}
    for name, value in label_hashes(folder).items():
        if known.get(name) != value:
            change = "changed after the prediction" if name in known else "added after the prediction"
            raise InferenceError(
                f"{folder / name} was {change} and would be lost; move {folder} away, or give another folder with --out"
            )
