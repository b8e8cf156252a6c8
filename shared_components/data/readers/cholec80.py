"""Cholec80, laparoscopic cholecystectomy: phases and tools (Twinanda et al., IEEE TMI 2017).

    root/videos/video01.mp4                             25 fps
    root/frames/video01/video01_000001.png              or 1 fps, from 1
    root/phase_annotations/video01-phase.txt            columns Frame, Phase; from 0
    root/tool_annotations/video01-tool.txt              columns Frame and seven tools

A sample is one frame per second, number 25 k, as in the tool annotations. Extracted frames are preferred to the video,
which is decoded in place. Rows after the last frame are errors, except a single row (as in video15 and video37).
"""

import logging
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from shared_components.data.files.images import DataError, file_exists, files_by_number, natural_order
from shared_components.data.files.tables import binary_row, changed, find_row, records, row
from shared_components.data.readers import Listing, Reader

PHASES = (
    "Preparation", "CalotTriangleDissection", "ClippingCutting", "GallbladderDissection", "GallbladderPackaging",
    "CleaningCoagulation", "GallbladderRetraction",
)  # fmt: skip
TOOLS = ("Grasper", "Bipolar", "Hook", "Scissors", "Clipper", "Irrigator", "SpecimenBag")
_EACH = 25  # frame numbers per second

logger = logging.getLogger(__name__)


class Cholec80(Reader):
    TARGETS = ("phase", "tools")
    LABELS = MappingProxyType({"phase": "cholecystectomy_phases", "tools": "cholec80_tools"})
    RATE = float(_EACH)

    def videos(self, root: Path) -> list[str]:
        folders = [path for path in (root / "frames").glob("video*") if path.is_dir()]
        names = {path.stem for path in (*folders, *(root / "videos").glob("video*.mp4"))}
        if not names:
            raise DataError(root, "contains no frames/ and no videos/ of Cholec80", "set 'root' to its folder")
        return sorted(names, key=natural_order)

    def frames(self, root: Path, video: str) -> Listing:
        phases = root / "phase_annotations" / f"{video}-phase.txt"
        tools = root / "tool_annotations" / f"{video}-tool.txt"
        images = self.images(root, video)
        rows = set(_phases(phases, changed(phases)))
        beyond = sorted(rows - images.keys())
        if len(beyond) == 1 and beyond[0] > max(images, default=0):
            logger.info("%s: row %d is after the video's end, and left out", phases, beyond[0])
            rows -= {beyond[0]}
        return [
            (n, images.get(n) or _image_path(root, video, n), {"phase": row(phases, n), "tools": row(tools, n)})
            for n in sorted(rows | images.keys())
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        if images := files_by_number(root / "frames" / video, "*.png", "*.jpg"):
            return {(number - 1) * _EACH: path for number, path in images.items()}
        file = root / "videos" / f"{video}.mp4"
        if not file.is_file():
            return {}
        from shared_components.data.files.video import frame_count

        return {number: file / f"{number:06d}" for number in range(0, frame_count(file), _EACH)}

    def read_image(self, path: Path) -> np.ndarray:
        if not file_exists(path):
            what = "file is missing, and there are annotations of this frame"
            raise DataError(path, what, "put it back, or cut the annotations where the video ends")
        return super().read_image(path)

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (address,) = files
        if name == "tools":
            return binary_row(find_row(_tools(address.parent, changed(address.parent)), address), address)
        return np.array(find_row(_phases(address.parent, changed(address.parent)), address), np.int64)


def _image_path(root: Path, video: str, number: int) -> Path:
    if (file := root / "videos" / f"{video}.mp4").is_file() and not (root / "frames" / video).is_dir():
        return file / f"{number:06d}"
    return root / "frames" / video / f"{video}_{number // _EACH + 1:06d}.png"


@lru_cache(maxsize=128)
def _phases(file: Path, stamp: int) -> dict[int, int]:
    """Return the phase of one frame per second, as in the tool annotations."""
    phases = {}
    for line in records(file, columns=("Frame", "Phase"), separator="\t"):
        if line["Phase"] not in PHASES:
            what = f"has phase {line['Phase']!r} at frame {line['Frame']}; expected one of {', '.join(PHASES)}"
            raise DataError(file, what, "copy it again")
        if (number := _number(file, line["Frame"])) % _EACH == 0:
            phases[number] = PHASES.index(line["Phase"])
    return phases


@lru_cache(maxsize=128)
def _tools(file: Path, stamp: int) -> dict[int, tuple[int, ...]]:
    lines = records(file, columns=("Frame", *TOOLS), separator="\t")
    return {_number(file, line["Frame"]): tuple(_number(file, line[tool]) for tool in TOOLS) for line in lines}


def _number(file: Path, text: str) -> int:
    if not text.isdecimal():
        raise DataError(file, f"contains {text!r} where a whole number is expected", "copy it again")
    return int(text)
