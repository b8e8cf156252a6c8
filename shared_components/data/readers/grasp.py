"""GraSP, robotic prostatectomy: instrument masks without parts (Ayobi et al., arXiv 2401.11174).

    root/frames/CASE001/000000068.jpg                         30 fps
    root/annotations/segmentations/CASE001/000000068.png      one per 35 s
    root/annotations/grasp_short-term_{train,test}.json       COCO, optional: frames with a mask

`root` is GraSP_30fps, or GraSP_1fps, which has the same folders with one frame a second and names of five digits. The
JSON files are looked at for the names of the frames whose mask is missing, and may be left out.

Known of the masks is that the authors' evaluation takes a value for the id of one of seven kinds of instrument, 1 to
7, and 0 for background. That they are of one channel, or of equal ones, is assumed. Which id is which kind is not
known and not asked: all are foreground. Other values and colours are refused.

A frame's number is its time in 30ths of a second, in both editions. Names do not all say that: those of
GraSP_1fps count seconds, and those of the cases in `_COUNT_45` count 45 a second, of which two in three exist (the
authors' loader finds image n of a folder at name 1.5 n, rounded). Of CASE014 that is assumed: the loader looks its
names up one by one. Should two of its images get one number, the later one is listed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from shared_components.data.files import DataError, by_number, frame_number, video_folders
from shared_components.data.readers import Listing, Reader

_COUNT_45 = frozenset({"CASE001", "CASE002", "CASE003", "CASE004", "CASE007", "CASE014", "CASE015"})
_DIGITS_OF_SECONDS = 5
_INSTRUMENTS = {0: 0, **dict.fromkeys(range(1, 8), 1)}
_LISTS = ("grasp_short-term_train.json", "grasp_short-term_test.json")


class Grasp(Reader):
    CLASS_MAP = "foreground"
    RATE = 30.0
    IDS = _INSTRUMENTS
    ALLOWED = "GraSP masks hold 0 and the instruments 1 to 7"

    def videos(self, root: Path) -> list[str]:
        return list(video_folders(root / "frames", lambda path: path.name.startswith("CASE")))

    def frames(self, root: Path, video: str) -> Listing:
        annotations = root / "annotations"
        masks = annotations / "segmentations" / video
        names = {path.stem for path in by_number(masks, "*.png").values()} | _with_mask(annotations, video)
        if not names:
            raise DataError(masks, "holds no masks", f"unpack the annotations or take {video} out of the split")
        numbers = {name: _number(video, name) for name in names}
        return [
            (numbers[name], root / "frames" / video / f"{name}.jpg", {"label": (masks / f"{name}.png",)})
            for name in sorted(names, key=numbers.__getitem__)
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        found = by_number(root / "frames" / video, "*.jpg")
        return {_number(video, path.stem): path for path in found.values()}


def _number(video: str, name: str) -> int:
    """Return a frame's time in 30ths of a second."""
    count = frame_number(Path(name))
    if len(name) == _DIGITS_OF_SECONDS:
        return count * 30
    return round(count * 30 / 45) if video in _COUNT_45 else count


def _with_mask(annotations: Path, video: str) -> set[str]:
    """Return the names, without ending, of a video's frames that should have a mask."""
    lists = [path for path in (annotations / name for name in _LISTS) if path.is_file()]
    listed = [image for path in lists for image in _listed(path, path.stat().st_mtime_ns)]
    return {image.stem for image in listed if image.parent.name == video}


@lru_cache(maxsize=len(_LISTS))
def _listed(path: Path, changed: int) -> tuple[Path, ...]:
    """Return the images that a COCO file names, such as CASE001/000000068.jpg; read again if it was changed."""
    try:
        return tuple(Path(image["file_name"]) for image in json.loads(path.read_bytes())["images"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"does not list its images as COCO files do ({type(error).__name__}: {error})"
        raise DataError(path, what, "copy the file again, or take it away") from error
