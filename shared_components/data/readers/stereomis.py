"""StereoMIS, porcine organs filmed in stereo (Hayoz et al., IJCARS 2023, doi 10.1007/s11548-023-02919-w).

    root[/StereoMIS_0_0_1]/P1/P1.mp4                       as published: the left image above the right one
    root[/StereoMIS_0_0_1]/P1/StereoCalibration.ini
    root[/StereoMIS_0_0_1]/P1/rectified/left/000012.png    written by `surgfl unpack-stereomis`: what is read here
    root[/StereoMIS_0_0_1]/P1/rectified/depth/000012.png   uint16, 256 per mm, 0 = unknown

The data set holds no depth: it is computed from the stereo pairs, see `shared_components.data.stereo`. A video is a
sequence's folder, P1, P2_0, ...; numbers are those of the video's frames, whose rate the unpacking prints: site.yaml
says it (`rate`) where clips are asked for. SurgFed trains on P1 and tests on the other sequences, of other pigs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shared_components.data.files import DataError, by_number, read_depth, video_folders
from shared_components.data.readers import Listing, Reader, paired

LEFT, DEPTH = "rectified/left", "rectified/depth"
CALIBRATION = "StereoCalibration.ini"


class StereoMis(Reader):
    TARGETS = ("depth",)

    def folders(self, root: Path) -> dict[str, Path]:
        return video_folders(root, _is_sequence)

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        return paired(
            "depth",
            self.images(root, video),
            by_number(folder / DEPTH, "*.png"),
            image=lambda number: folder / LEFT / f"{number:06d}.png",
            file=lambda number: folder / DEPTH / f"{number:06d}.png",
        )

    def images(self, root: Path, video: str) -> dict[int, Path]:
        folder = self.folders(root)[video]
        found = by_number(folder / LEFT, "*.png")
        if not found:
            raise DataError(folder, f"has no frames in {LEFT}/", f"run 'surgfl unpack-stereomis {root}' once")
        return found

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        return read_depth(path)


def _is_sequence(path: Path) -> bool:
    return (path / LEFT).is_dir() or (path / CALIBRATION).is_file()
