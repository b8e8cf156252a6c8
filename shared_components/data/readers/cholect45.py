"""CholecT45, laparoscopic cholecystectomy: action triplets (Nwoye et al., Medical Image Analysis 2022).

    root/data/VID01/000000.png                                          1 fps, from 0
    root/{triplet,instrument,verb,target}/VID01.txt                     frame, then 0 or 1 per class

There are 100 triplets, 6 instruments, 10 verbs and 15 targets ("anatomy" here). The version of 2020 with 94 triplets is
refused. Frames may be in videos/ and be JPEG, and the tables in cholect45_style_txt/, as in the challenge's validation
set. Frames without a row have no target.

The release has no phases; Cholec80 and CholecT50 label the phases of the same operations. The challenge's copy and
rendered copies have phase/VID01.txt: frame, then 0 or 1 for each of 7 phases, or the phase's number.
"""

from pathlib import Path
from types import MappingProxyType

import numpy as np

from shared_components.data.files.images import DataError, files_by_number, video_folders
from shared_components.data.files.tables import Rows, binary_row, class_of_row, find_row, numbered_rows, row
from shared_components.data.readers import Listing, Reader

PHASES = 7
_TABLES = {
    "triplets": ("triplet", (100,), "the 100 triplets of CholecT45"),
    "instruments": ("instrument", (6,), "its 6 instruments"),
    "verbs": ("verb", (10,), "its 10 verbs"),
    "anatomy": ("target", (15,), "its 15 targets"),
    "phase": ("phase", (1, PHASES), "its 7 phases or the number of one"),
}
"""Folder of the tables, numbers of labels per row, and their description, by target."""
_OTHERS = "take those of Cholec80 ('dataset: cholec80') or of CholecT50 ('dataset: cholect50')"
_TABLE_FOLDERS = ("", "cholect45_style_txt")


class CholecT45(Reader):
    TARGETS = tuple(_TABLES)
    LABELS = MappingProxyType({"triplets": "triplets", "phase": "cholecystectomy_phases"})
    RATE = 1.0

    def folders(self, root: Path) -> dict[str, Path]:
        for base in (root / "data", root / "videos"):
            if base.is_dir():
                return video_folders(base, lambda path: path.name.startswith("VID"))
        raise DataError(root, "contains no data/ or videos/ of CholecT45", "set 'root' to its folder")

    def targets_under(self, root: Path) -> tuple[str, ...]:
        has_phases = any((root / folder / "phase").is_dir() for folder in _TABLE_FOLDERS)
        return tuple(name for name in self.TARGETS if name != "phase" or has_phases)

    def frames(self, root: Path, video: str) -> Listing:
        tables = {name: _table(root, name, video) for name in _TABLES}
        images = self.images(root, video)
        folder, ending = self.folders(root)[video], next(iter(images.values())).suffix if images else ".png"
        return [
            (n, images.get(n) or folder / f"{n:06d}{ending}", {name: row(file, n) for name, file in tables.items()})
            for n in sorted(_rows("triplets", tables["triplets"]))
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return files_by_number(self.folders(root)[video], "*.png", "*.jpg")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (address,) = files
        if name == "phase" and not address.parent.is_file():
            raise DataError(address.parent, "is missing: CholecT45 is published without phases", _OTHERS)
        values = find_row(_rows(name, address.parent), address, address.parent.stem)
        return class_of_row(values, address, PHASES) if name == "phase" else binary_row(values, address)


def _table(root: Path, name: str, video: str) -> Path:
    paths = [root / folder / _TABLES[name][0] / f"{video}.txt" for folder in _TABLE_FOLDERS]
    return next((path for path in paths if path.is_file()), paths[0])


def _rows(name: str, file: Path) -> Rows:
    _, columns, what = _TABLES[name]
    return numbered_rows(file, columns=columns, what=what)
