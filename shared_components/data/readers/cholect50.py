"""CholecT50, laparoscopic cholecystectomy: action triplets (Nwoye et al., Medical Image Analysis 2022).

    root/videos/VID01/000000.png          1 fps, from 0
    root/labels/VID01.json                annotations and categories

A row of 15 numbers describes an instrument: triplet, instrument, score, box (4), verb, target, score, box (4), phase;
-1 is unknown. The validation set of the challenge of 2022 has the same layout, with rows only for some seconds. A file
of another version, whose categories are not 100 triplets, is refused. Frames without an entry have no target.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from shared_components.data.files.classes import IGNORED
from shared_components.data.files.images import DataError, files_by_number, video_folders
from shared_components.data.files.tables import changed, find_row, read_json, row
from shared_components.data.readers import Listing, Reader

_PLACES = {"triplets": (0, 100), "instruments": (1, 6), "verbs": (7, 10), "anatomy": (8, 15)}
"""Position in a row and number of classes of each target."""
_PHASE, _PHASES, _NUMBERS = 14, 7, 15
_READ = (*(place for place, _ in _PLACES.values()), _PHASE)


class CholecT50(Reader):
    TARGETS = (*_PLACES, "phase")
    LABELS = MappingProxyType({"triplets": "triplets", "phase": "cholecystectomy_phases"})
    RATE = 1.0

    def folders(self, root: Path) -> dict[str, Path]:
        if not (root / "videos").is_dir():
            raise DataError(root, "contains no videos/ of CholecT50", "set 'root' to its folder")
        return video_folders(root / "videos", lambda path: path.name.startswith("VID"))

    def frames(self, root: Path, video: str) -> Listing:
        file, images = root / "labels" / f"{video}.json", self.images(root, video)
        ending = next(iter(images.values())).suffix if images else ".png"
        folder = self.folders(root)[video]
        return [
            (n, images.get(n) or folder / f"{n:06d}{ending}", {name: row(file, n) for name in self.TARGETS})
            for n in sorted(_annotations(file, changed(file)))
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return files_by_number(self.folders(root)[video], "[0-9]" * 6 + ".png", "[0-9]" * 6 + ".jpg")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (address,) = files
        rows = find_row(_annotations(address.parent, changed(address.parent)), address, address.parent.stem)
        if name == "phase":
            phases = _ids(rows, _PHASE, _PHASES, address)
            if len(phases) > 1:
                what = f"has the phases {sorted(phases)} at frame {int(address.name)}"
                raise DataError(address.parent, what, "correct its rows, which are of one moment")
            return np.array(next(iter(phases), IGNORED), np.int64)
        place, count = _PLACES[name]
        target = np.zeros(count, np.uint8)
        target[sorted(_ids(rows, place, count, address))] = 1
        return target


def _is_row(line: Any) -> bool:
    """Return whether a row has 15 values, with whole numbers as ids."""
    return len(line) == _NUMBERS and all(type(line[place]) in (int, float) and line[place] % 1 == 0 for place in _READ)


def _ids(rows: Iterable[list[float]], place: int, count: int, address: Path) -> set[int]:
    ids = {int(line[place]) for line in rows}
    if wrong := sorted(i for i in ids if not -1 <= i < count):
        what = f"has the ids {wrong[:8]} at frame {int(address.name)}, where 0 to {count - 1} are expected"
        raise DataError(address.parent, what, "copy the file of the version with 100 triplets")
    return ids - {-1}


@lru_cache(maxsize=64)
def _annotations(file: Path, stamp: int) -> dict[int, Any]:
    """Return the rows of each frame of a video; DataError for a file of another layout or version."""
    try:
        content = read_json(file)
        triplets = content.get("categories", {}).get("triplet", {})
        frames = {int(number): rows for number, rows in content["annotations"].items()}
        invalid = next((n for n, rows in frames.items() if not all(map(_is_row, rows))), None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(file, f"is no label file of CholecT50 ({error!r})", "copy it again") from error
    if triplets and len(triplets) != _PLACES["triplets"][1]:
        raise DataError(file, f"has {len(triplets)} triplets, not the 100 of CholecT50", "copy that version's files")
    if invalid is not None:
        raise DataError(file, f"has rows at frame {invalid} without 15 numbers or whole ids", "copy it again")
    return frames
