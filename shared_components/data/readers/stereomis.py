"""StereoMIS, porcine surgery: depth from stereo video (Hayoz et al., IJCARS 2023, doi 10.1007/s11548-023-02919-w).

    root[/StereoMIS_0_0_1]/P1/P1.mp4                       left image above right image
    root[/StereoMIS_0_0_1]/P1/StereoCalibration.ini
    root[/StereoMIS_0_0_1]/P1/{train,test}_split.csv       columns start,end; end excluded
    root[/StereoMIS_0_0_1]/P1/rectified/left/000012.png    written by `surgfl unpack-stereomis`
    root[/StereoMIS_0_0_1]/P1/rectified/depth/000012.png   uint16, 256 per mm, 0 = unknown

The data set holds no depth: it is computed from the stereo pairs, see `shared_components.data.stereo`. A video is a
sequence's folder, P1, P2_0, ...; numbers are those of the video's frames, whose rate the unpacking prints: site.yaml
says it (`rate`) where clips are asked for. SurgFed trains on P1 and tests on the other sequences, of other pigs.

If a sequence has a table, only its stretches are used: the rest shows the set-up and the teardown. A sequence with
both tables is two videos, P1/train and P1/test.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shared_components.data.files import DataError, by_number, read_depth, video_folders
from shared_components.data.readers import Listing, Reader, paired
from shared_components.data.tables import records

LEFT, DEPTH = "rectified/left", "rectified/depth"
CALIBRATION = "StereoCalibration.ini"


class StereoMis(Reader):
    TARGETS = ("depth",)

    def folders(self, root: Path) -> dict[str, Path]:
        sequences = video_folders(root, lambda path: (path / LEFT).is_dir() or (path / CALIBRATION).is_file())
        return {name: folder for sequence, folder in sequences.items() for name in _videos(sequence, folder)}

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        return paired(
            "depth",
            self.images(root, video),
            _within(video, folder, by_number(folder / DEPTH, "*.png")),
            image=lambda number: folder / LEFT / f"{number:06d}.png",
            file=lambda number: folder / DEPTH / f"{number:06d}.png",
        )

    def images(self, root: Path, video: str) -> dict[int, Path]:
        folder = self.folders(root)[video]
        found = _within(video, folder, by_number(folder / LEFT, "*.png"))
        if not found:
            what = f"has no frames in {LEFT}/{', in the stretches of its tables' if stretches(folder) else ''}"
            raise DataError(folder, what, f"run 'surgfl unpack-stereomis {root}' once")
        return found

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        return read_depth(path)


def stretches(folder: Path) -> dict[str, list[range]]:
    """Return the numbers of the frames that a sequence's tables name, by "train" and "test"; none where it has none.

    Raises:
        DataError: a row of a table is no stretch.
    """
    tables = {part: folder / f"{part}_split.csv" for part in ("train", "test")}
    found = {part: _rows(table) for part, table in tables.items() if table.is_file()}
    return {part: rows for part, rows in found.items() if rows}


def is_used(number: int, parts: dict[str, list[range]]) -> bool:
    """Say whether a frame lies in one of the `stretches`, or there are none."""
    return not parts or any(number in row for rows in parts.values() for row in rows)


def _videos(sequence: str, folder: Path) -> list[str]:
    parts = stretches(folder)
    return [f"{sequence}/{part}" for part in parts] if len(parts) > 1 else [sequence]


def _rows(table: Path) -> list[range]:
    rows = [(row["start"], row["end"]) for row in records(table, columns=("start", "end"))]
    for start, end in rows:
        if not (start.isdecimal() and end.isdecimal() and int(start) < int(end)):
            raise DataError(table, f"says that a stretch goes from {start!r} to {end!r}", "copy the file again")
    return [range(int(start), int(end)) for start, end in rows]


def _within(video: str, folder: Path, files: dict[int, Path]) -> dict[int, Path]:
    """Keep the files of a video's stretches."""
    _, _, part = video.partition("/")
    parts = stretches(folder)
    kept = {part: parts[part]} if part else parts
    return {number: path for number, path in files.items() if is_used(number, kept)}
