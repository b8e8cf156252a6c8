"""NRRD for 3D Slicer: a segmentation with named and coloured segments, and a frame volume, per video."""

from collections.abc import Sequence
from pathlib import Path

from shared_components.data.files.nrrd import PictureWriter, Segment, SegmentationWriter
from shared_components.inference.export_volumes import FRAMES, LABELS, Volumes
from shared_components.inference.exports import Export, class_colours
from shared_components.inference.frames import FrameStream


class _Nrrd(Volumes):
    form = "nrrd"

    def writers(self, name: str) -> tuple[SegmentationWriter, PictureWriter]:
        named = enumerate(zip(self.classes, class_colours(len(self.classes)), strict=True))
        segments = [Segment(name, number, colour) for number, (name, colour) in named if number]
        return (
            SegmentationWriter(self.folder / LABELS / f"{name}.seg.nrrd", segments),
            PictureWriter(self.folder / FRAMES / f"{name}.nrrd"),
        )


def open_export(folder: Path, stream: FrameStream, classes: Sequence[str]) -> Export:
    """Return the export to `labels/<video>.seg.nrrd` and `frames/<video>.nrrd`."""
    return _Nrrd(folder, stream, classes)
