"""NIfTI for ITK-SNAP and 3D Slicer: a label volume and a frame volume per video, and the labels' names and colours.

`dataset: nifti` reads the corrected labels for training.
"""

from collections.abc import Sequence
from pathlib import Path

from shared_components.common.atomic import write_text
from shared_components.data.files.label_names import described
from shared_components.data.files.nifti import MOST_FRAMES, LabelWriter, PictureWriter
from shared_components.inference import NIFTI, InferenceError
from shared_components.inference.export_volumes import FRAMES, LABELS, Volumes
from shared_components.inference.exports import Export
from shared_components.inference.frames import FrameStream

NAMES = "labels.txt"


class _Nifti(Volumes):
    form = NIFTI

    def __init__(self, folder: Path, stream: FrameStream, classes: Sequence[str]) -> None:
        if stream.is_video and (stream.total or 0) > MOST_FRAMES:  # several volumes would look like several operations
            least = -(-(stream.total or 0) // MOST_FRAMES) * stream.every
            raise InferenceError(
                f"{stream.source} has {stream.total:,} frames to segment, and a NIfTI volume takes {MOST_FRAMES:,}; "
                f"use --every {least}"
            )
        super().__init__(folder, stream, classes)
        self.most = MOST_FRAMES

    def writers(self, name: str) -> tuple[LabelWriter, PictureWriter]:
        return (
            LabelWriter(self.folder / LABELS / f"{name}.nii.gz"),
            PictureWriter(self.folder / FRAMES / f"{name}.nii"),
        )

    def close(self) -> None:
        super().close()
        write_text(self.folder / NAMES, described(dict(enumerate(self.classes))))


def open_export(folder: Path, stream: FrameStream, classes: Sequence[str]) -> Export:
    """Return the export to `labels/<video>.nii.gz`, `frames/<video>.nii` and `labels.txt`.

    A live stream that exceeds a volume continues in `<video>-2`, and so on. Raises InferenceError if a video has more
    frames than a volume can contain.
    """
    return _Nifti(folder, stream, classes)
