"""AutoLaparo's task 3, laparoscopic hysterectomies (Wang et al., MICCAI 2022, doi 10.1007/978-3-031-16449-1_46).

    root[/AutoLaparo_Task3]/imgs/001001.jpg      clip 001, frame 001; 1920x1080
    root[/AutoLaparo_Task3]/masks/001001.png     grey ids, in one channel or in three equal ones

A video is a clip, named by its three digits: 300 clips of 6 frames, one a second, all labelled. The official split is
by clips, as of task 2: 001 to 170 train, 171 to 227 validation, 228 to 300 test; a site.yaml lists them. A frame's
number is the whole name's, 1001, whether a clip's first one is called 000 or 001, which no source confirms.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType

from shared_components.data.files import DataError
from shared_components.data.readers import Listing, Reader, paired

_PER_CLIP = 1000  # numbers


class AutoLaparo(Reader):
    CLASS_MAP = "hysterectomy"
    RATE = 1.0
    IDS = MappingProxyType({20 * class_id: class_id for class_id in range(10)})
    ALLOWED = "AutoLaparo ids are 0, 20, 40, ... 180: manipulators and shafts of four tools, and the uterus"

    def videos(self, root: Path) -> list[str]:
        base = _base(root)
        numbers = {*_files(base / "imgs", ".jpg"), *_files(base / "masks", ".png")}
        return sorted({f"{number // _PER_CLIP:03d}" for number in numbers})

    def frames(self, root: Path, video: str) -> Listing:
        base = _base(root)
        return paired(
            "label",
            self.images(root, video),
            _of_clip(_files(base / "masks", ".png"), video),
            image=lambda number: base / "imgs" / f"{number:06d}.jpg",
            file=lambda number: base / "masks" / f"{number:06d}.png",
        )

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return _of_clip(_files(_base(root) / "imgs", ".jpg"), video)


def _base(root: Path) -> Path:
    """Return the folder of imgs/ and masks/: the root, or AutoLaparo_Task3 below it."""
    for base in (root, root / "AutoLaparo_Task3"):
        if (base / "imgs").is_dir():
            return base
    raise DataError(root, "holds no imgs/ of AutoLaparo's task 3", "set 'root' to the folder AutoLaparo_Task3")


def _files(folder: Path, ending: str) -> dict[int, Path]:
    """List the files whose names are six digits, by number; others are none of the data set's."""
    names = (path for path in sorted(folder.glob(f"*{ending}")) if re.fullmatch(r"\d{6}", path.stem))
    return {int(path.stem): path for path in names}


def _of_clip(files: dict[int, Path], video: str) -> dict[int, Path]:
    return {number: path for number, path in files.items() if number // _PER_CLIP == int(video)}
