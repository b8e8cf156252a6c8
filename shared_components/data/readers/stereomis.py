"""StereoMIS, porcine surgery: depth from stereo video (Hayoz et al., IJCARS 2023, doi 10.1007/s11548-023-02919-w).

    root[/StereoMIS_0_0_1]/P1/P1.mp4                       left image above right image
    root[/StereoMIS_0_0_1]/P1/StereoCalibration.ini
    root[/StereoMIS_0_0_1]/P1/{train,test}_split.csv       columns start,end; end excluded
    root[/StereoMIS_0_0_1]/P1/rectified/left/000012.png    written by `surgfl unpack-stereomis`
    root[/StereoMIS_0_0_1]/P1/rectified/depth/000012.png   uint16, 256 per mm, 0 = unknown

The data set contains no depth: `shared_components.data.stereo` computes it from the stereo pairs. A video is a
sequence's folder, P1, P2_0, ...; its numbers are frame numbers of the video file. Unpacking prints the frame rate,
which clips need as `rate` in site.yaml. SurgFed trains on P1 and tests on the other sequences, of other pigs.

If a sequence has a table, only the table's frame ranges are used: the rest shows the set-up and the teardown. A
sequence with both tables is two videos, P1/train and P1/test.
"""

from pathlib import Path

import numpy as np

from shared_components.data.files.images import DataError, files_by_number, read_depth, video_folders
from shared_components.data.files.tables import records
from shared_components.data.readers import Listing, Reader, paired

LEFT, DEPTH = "rectified/left", "rectified/depth"
CALIBRATION = "StereoCalibration.ini"


class StereoMis(Reader):
    TARGETS = ("depth",)

    def folders(self, root: Path) -> dict[str, Path]:
        sequences = video_folders(root, lambda path: (path / LEFT).is_dir() or (path / CALIBRATION).is_file())
        videos: dict[str, Path] = {}
        for sequence, folder in sequences.items():
            parts = stretches(folder)
            videos |= dict.fromkeys([f"{sequence}/{part}" for part in parts] if len(parts) > 1 else [sequence], folder)
        return videos

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        return paired(
            "depth", self.images(root, video), _within(video, folder, files_by_number(folder / DEPTH, "*.png")),
            image=lambda number: folder / LEFT / f"{number:06d}.png",
            file=lambda number: folder / DEPTH / f"{number:06d}.png",
        )  # fmt: skip

    def images(self, root: Path, video: str) -> dict[int, Path]:
        folder = self.folders(root)[video]
        images = _within(video, folder, files_by_number(folder / LEFT, "*.png"))
        if not images:
            what = f"has no frames in {LEFT}/{', in the stretches of its tables' if stretches(folder) else ''}"
            raise DataError(folder, what, f"run 'surgfl unpack-stereomis {root}' once")
        return images

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        return read_depth(path)


def stretches(folder: Path) -> dict[str, list[range]]:
    """Return the frame ranges in a sequence's tables, by "train" and "test"; DataError for an invalid row."""
    tables = {part: folder / f"{part}_split.csv" for part in ("train", "test")}
    return {part: rows for part, table in tables.items() if table.is_file() and (rows := _rows(table))}


def is_used(number: int, parts: dict[str, list[range]]) -> bool:
    """Return whether a frame is in one of the `stretches`, or there are no stretches."""
    return not parts or any(number in row for rows in parts.values() for row in rows)


def _rows(table: Path) -> list[range]:
    rows = [(row["start"], row["end"]) for row in records(table, columns=("start", "end"))]
    for start, end in rows:
        if not (start.isdecimal() and end.isdecimal() and int(start) < int(end)):
            raise DataError(table, f"has a stretch from {start!r} to {end!r}", "copy the file again")
    return [range(int(start), int(end)) for start, end in rows]


def _within(video: str, folder: Path, files: dict[int, Path]) -> dict[int, Path]:
    _, _, part = video.partition("/")
    parts = stretches(folder)
    parts = {part: parts[part]} if part else parts
    return {number: path for number, path in files.items() if is_used(number, parts)}
