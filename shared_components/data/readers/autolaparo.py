"""AutoLaparo task 3, laparoscopic hysterectomy (Wang et al., MICCAI 2022, doi 10.1007/978-3-031-16449-1_46).

    root[/AutoLaparo_Task3]/imgs/001001.jpg      clip 001, frame 001
    root[/AutoLaparo_Task3]/masks/001001.png     ids, one or three equal channels

A video is a clip, named by its three digits: 300 clips of 6 frames, one per second, all labelled. The official split is
by clips, as in task 2: 001 to 170 train, 171 to 227 validation, 228 to 300 test.

Two inventories of the release differ: a clip's frames are 001 to 006, or 001, 025, 050, 075, 100 and 125 (25 per
second). The reader finds the rate from the usual distance between two frames. A frame's number here is 1000 times the
clip plus the second: 001001 of the first inventory and 001025 of the second inventory have the number 1001.
"""

import re
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from types import MappingProxyType

from shared_components.data.files.images import DataError
from shared_components.data.readers import Listing, Reader

_PER_CLIP = 1000  # numbers
_FRAMES = 6  # frames per clip; at larger distances, numbers are times


class AutoLaparo(Reader):
    CLASS_MAP = "hysterectomy"
    RATE = 1.0
    IDS = MappingProxyType({20 * class_id: class_id for class_id in range(10)})
    ALLOWED = "AutoLaparo ids are 0, 20, 40, ... 180: manipulators and shafts of four tools, and the uterus"

    def videos(self, root: Path) -> list[str]:
        return sorted({stem[:3] for stem in _stems(_base(root)).values()})

    def frames(self, root: Path, video: str) -> Listing:
        base = _base(root)
        return [
            (number, base / "imgs" / f"{stem}.jpg", {"label": (base / "masks" / f"{stem}.png",)})
            for number, stem in _stems(base).items()
            if stem[:3] == video
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return {number: image for number, image, _ in self.frames(root, video) if image.is_file()}


def _base(root: Path) -> Path:
    for base in (root, root / "AutoLaparo_Task3"):
        if (base / "imgs").is_dir():
            return base
    raise DataError(root, "contains no imgs/ of AutoLaparo's task 3", "set 'root' to the folder AutoLaparo_Task3")


def _stems(base: Path) -> dict[int, str]:
    """Return the names of frames with an image or a mask, by number; DataError if two have the same second.

    Files whose names are not six digits do not belong to the data set.
    """
    files = [*(base / "imgs").glob("*.jpg"), *(base / "masks").glob("*.png")]
    stems = sorted({path.stem for path in files if re.fullmatch(r"\d{6}", path.stem)})
    numbers = [int(stem) for stem in stems]
    distances = [b - a for a, b in pairwise(numbers) if a // _PER_CLIP == b // _PER_CLIP]
    usual = median_low(distances) if distances else 1
    rate = usual if usual > _FRAMES else 1
    by_second: dict[int, str] = {}
    for stem, number in zip(stems, numbers, strict=True):
        second = number - number % _PER_CLIP + round(number % _PER_CLIP / rate)
        if second in by_second:
            what = f"is of the same second as {by_second[second]}.jpg, at {rate} frame numbers per second"
            raise DataError(base / "imgs" / f"{stem}.jpg", what, "remove one of them; a clip has six frames")
        by_second[second] = stem
    return by_second
