"""GraSP, robotic prostatectomy: instrument masks without parts (Ayobi et al., arXiv 2401.11174).

    root/frames/CASE001/000000068.jpg                         30 fps
    root/annotations/segmentations/CASE001/000000068.png      one per 35 s
    root/annotations/grasp_short-term_{train,test}.json       COCO, optional: frames with a mask

`root` is GraSP_30fps, or GraSP_1fps, with the same folders, one frame per second and names of five digits. The optional
JSON files name the frames whose mask may be missing.

In the authors' evaluation, mask values 1 to 7 are kinds of instruments and 0 is background. Here all instruments are
foreground, and other values and colours are refused. One channel, or equal channels, is an assumption.

A frame's number is its time in 30ths of a second, in both editions. File names of GraSP_1fps count seconds. File names
of the cases in `_COUNT_45` count 45 per second, and two of three exist (the authors' loader finds image n of a folder
at name 1.5 n, rounded). For CASE014 this is an assumption: the loader has a list of its names. If two of its images
get the same number, the later image is used.
"""

import json
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from shared_components.data.files.images import DataError, files_by_number, frame_number, video_folders
from shared_components.data.readers import Listing, Reader

_COUNT_45 = frozenset({"CASE001", "CASE002", "CASE003", "CASE004", "CASE007", "CASE014", "CASE015"})
_DIGITS_OF_SECONDS = 5
_LISTS = ("grasp_short-term_train.json", "grasp_short-term_test.json")


class Grasp(Reader):
    CLASS_MAP = "foreground"
    RATE = 30.0
    IDS = MappingProxyType({0: 0, **dict.fromkeys(range(1, 8), 1)})
    ALLOWED = "GraSP masks contain 0 and the instruments 1 to 7"

    def videos(self, root: Path) -> list[str]:
        return list(video_folders(root / "frames", lambda path: path.name.startswith("CASE")))

    def frames(self, root: Path, video: str) -> Listing:
        annotations = root / "annotations"
        masks = annotations / "segmentations" / video
        lists = [path for path in map(annotations.joinpath, _LISTS) if path.is_file()]
        images = [image for path in lists for image in _listed(path, path.stat().st_mtime_ns)]
        names = {path.stem for path in files_by_number(masks, "*.png").values()}
        names |= {image.stem for image in images if image.parent.name == video}
        if not names:
            raise DataError(masks, "contains no masks", f"unpack the annotations or take {video} out of the split")
        numbers = {name: _number(video, name) for name in names}
        return [
            (numbers[name], root / "frames" / video / f"{name}.jpg", {"label": (masks / f"{name}.png",)})
            for name in sorted(names, key=numbers.__getitem__)
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return {_number(video, path.stem): path for path in files_by_number(root / "frames" / video, "*.jpg").values()}


def _number(video: str, name: str) -> int:
    """Return a frame's time in 30ths of a second."""
    count = frame_number(Path(name))
    if len(name) == _DIGITS_OF_SECONDS:
        return count * 30
    return round(count * 30 / 45) if video in _COUNT_45 else count


@lru_cache(maxsize=len(_LISTS))
def _listed(path: Path, changed: int) -> tuple[Path, ...]:
    """Return the images in a COCO file, such as CASE001/000000068.jpg."""
    try:
        return tuple(Path(image["file_name"]) for image in json.loads(path.read_bytes())["images"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"does not list its images as COCO files do ({type(error).__name__}: {error})"
        raise DataError(path, what, "copy the file again, or take it away") from error
