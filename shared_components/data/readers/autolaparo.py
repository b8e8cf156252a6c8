"""AutoLaparo task 3, laparoscopic hysterectomy (Wang et al., MICCAI 2022, doi 10.1007/978-3-031-16449-1_46).

    root[/AutoLaparo_Task3]/imgs/001001.jpg      clip 001, frame 001
    root[/AutoLaparo_Task3]/masks/001001.png     ids, one or three equal channels

A video is a clip, named by its three digits: 300 clips of 6 frames, one a second, all labelled. The official split is
by clips, as of task 2: 001 to 170 train, 171 to 227 validation, 228 to 300 test; a site.yaml lists them.

Two inventories of the release differ: a clip's frames are 001 to 006, or 001, 025, 050, 075, 100 and 125 (25 a
second). The reader finds the rate from the usual distance between two frames. A frame's number here is 1000 times the
clip and the second: 001001 of the first inventory and 001025 of the second inventory have the number 1001.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from types import MappingProxyType

from shared_components.data.files import DataError
from shared_components.data.readers import Listing, Reader

_PER_CLIP = 1000  # numbers
_FRAMES = 6  # of a clip; where two of them are not further apart, frames are counted and not timed
Stems = dict[int, str]
"""Names of frames, without ending, by their numbers."""


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
    """Return the folder of imgs/ and masks/: the root, or AutoLaparo_Task3 below it."""
    for base in (root, root / "AutoLaparo_Task3"):
        if (base / "imgs").is_dir():
            return base
    raise DataError(root, "holds no imgs/ of AutoLaparo's task 3", "set 'root' to the folder AutoLaparo_Task3")


def _stems(base: Path) -> Stems:
    """List the frames that have an image or a mask, in order; names that are not six digits are none of the data set's.

    Raises:
        DataError: two frames have the same second.
    """
    files = [*(base / "imgs").glob("*.jpg"), *(base / "masks").glob("*.png")]
    stems = sorted({path.stem for path in files if re.fullmatch(r"\d{6}", path.stem)})
    numbers = [int(stem) for stem in stems]
    distances = [b - a for a, b in pairwise(numbers) if a // _PER_CLIP == b // _PER_CLIP]
    usual = median_low(distances) if distances else 1
    a_second = usual if usual > _FRAMES else 1
    found: Stems = {}
    for stem, number in zip(stems, numbers, strict=True):
        second = number - number % _PER_CLIP + round(number % _PER_CLIP / a_second)
        if second in found:
            what = f"is of the same second as {found[second]}.jpg, at {a_second} frame numbers a second"
            raise DataError(base / "imgs" / f"{stem}.jpg", what, "remove one of them; a clip has six frames")
        found[second] = stem
    return found
