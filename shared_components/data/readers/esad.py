"""ESAD, robotic prostatectomy (Bawa et al., arXiv 2104.03178).

    root/{train/set1,train/set2,val/obj,test}/RARP1_frame_12.jpg     1 fps
    root/{train/set1,train/set2,val/obj,test_labels}/RARP1_frame_12.txt     boxes

A video is an operation, with the images of all sets. As in EndoViT, each set is used from its first to its last frame
with a box: other frames were filmed before and after the operation.
"""

from pathlib import Path

from shared_components.data.files.images import DataError, frame_number
from shared_components.data.files.unlabelled import Unlabelled


class Esad(Unlabelled):
    FOLDERS = ("[!.]*/**/",)
    FILE = r"(?:train/set\d|val/obj|test)/(?P<video>RARP\d+)_frame_\d+\.jpg"

    def used(self, folder: Path, files: list[Path]) -> list[Path]:
        labels = folder.with_name("test_labels") if folder.name == "test" else folder
        boxed = [frame_number(path) for path in labels.glob("RARP*_frame_*.txt") if path.stat().st_size]
        if not boxed:
            what = "contains no annotation with a box (RARP<n>_frame_<n>.txt), which mark the images of the operation"
            raise DataError(labels, what, "unpack the annotations there")
        return [path for path in files if min(boxed) <= frame_number(path) <= max(boxed)]
