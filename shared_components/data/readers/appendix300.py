"""Appendix300, laparoscopic appendectomy: one grade per video (Kolbinger et al., 2025; FedSurg, arXiv 2510.04772).

    root/Full_Videos/Center1/Center1_001/Center1_001.mp4     read at 2 fps
    root/Images/Center1/Center1_001/<frame>.jpg              or frames.zip, unpacked
    root/videos/<video>/000000.jpg                           or frames at 2 fps
    root/grades.csv                                          columns: video,grade

Grades are 0 to 5: normal, oedema, fibrin, necrosis, abscess or regional peritonitis, diffuse peritonitis. The layout of
the published metadata (overall_merged.csv) is unknown here, so convert them to grades.csv. A video without a grade is
an error, or set aside within the site's `quarantine`.
"""

from pathlib import Path
from types import MappingProxyType

import numpy as np

from shared_components.data.files.classes import LABELS
from shared_components.data.files.images import DataError, files_by_number, natural_order
from shared_components.data.files.tables import records, row
from shared_components.data.readers import Listing, Reader

_TABLE = "grades.csv"
_RATE = 2


class Appendix300(Reader):
    TARGETS = ("grade",)
    LABELS = MappingProxyType({"grade": "appendicitis_grades"})
    RATE = float(_RATE)

    def folders(self, root: Path) -> dict[str, Path]:
        levels = ("videos/*", "Full_Videos/*/*", "Images/*/*")
        paths = [path for level in levels for path in root.glob(level) if path.is_dir() and path.name[0] not in "._"]
        by_name = {path.name: path for path in reversed(paths)}  # the first level wins
        if not by_name:
            raise DataError(root, "contains no videos/ or Full_Videos/ of Appendix300", "set 'root' to its folder")
        return {name: by_name[name] for name in sorted(by_name, key=natural_order)}

    def frames(self, root: Path, video: str) -> Listing:
        grade = {"grade": row(root / _TABLE, video)}
        return [(number, image, grade) for number, image in sorted(self.images(root, video).items())]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        folder = self.folders(root)[video]
        file = folder / f"{video}.mp4"
        return _of_video(file) if file.is_file() else files_by_number(folder, "*.jpg", "*.png")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (address,) = files
        table, video = address.parent, address.name
        grades = [line["grade"] for line in records(table, columns=("video", "grade")) if line["video"] == video]
        known = range(len(LABELS["appendicitis_grades"]))
        if len(grades) != 1:
            what = f"has {len(grades)} grades of {video}" if grades else f"has no grade of {video}"
            raise DataError(table, what, "give it one, or take the video out of the split")
        if not grades[0].isdecimal() or int(grades[0]) not in known:
            what = f"gives {video} the grade {grades[0]!r}" if grades[0] else f"gives {video} no grade"
            raise DataError(table, what, f"write 0 to {known[-1]}, or take the video out of the split")
        return np.array(int(grades[0]), np.int64)


def _of_video(file: Path) -> dict[int, Path]:
    """Return two frames per second of a video file, numbered by half seconds."""
    from shared_components.data.files.video import frame_count, opened, shown_stream

    with opened(file) as container:
        rate = shown_stream(container, file).average_rate
    if not rate:
        raise DataError(file, "does not say how many frames it has a second", "convert it to H.264 MP4")
    count = frame_count(file)
    return {
        n: file / f"{at:06d}" for n in range(int(count / rate * _RATE) + 1) if (at := round(n * rate / _RATE)) < count
    }
