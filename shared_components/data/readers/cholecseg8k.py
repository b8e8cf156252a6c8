"""CholecSeg8k, laparoscopic cholecystectomy: tissue and instrument masks (Hong et al., arXiv 2012.12453).

    root/video01/video01_00080/frame_80_endo.png                     25 fps, clips of 80 frames
    root/video01/video01_00080/frame_80_endo_watershed_mask.png      grey values
    root/video01/video01_00080/frame_80_endo_color_mask.png          or colours

Thirteen classes have a value and a colour each. Masks contain two more: white (255), a border of one pixel, and black
(0), gaps between regions; both are `IGNORED`. Four masks have an alpha channel (in video18_01139, video35_00780 and two
in video37_00848), which is left out. The values that the official table calls #505050 are decimal: 50, 50, 50.
`cholecseg8k_merged` are the eight classes of EndoViT's experiments.
"""

from pathlib import Path

import numpy as np

from shared_components.data.files.classes import IGNORED
from shared_components.data.files.images import DataError, files_by_number, map_colours, read_colours, video_folders
from shared_components.data.readers import Listing, Reader, paired

VALUES = {50: 0, 11: 1, 21: 2, 13: 3, 12: 4, 31: 5, 23: 6, 24: 7, 25: 8, 32: 9, 22: 10, 33: 11, 5: 12}
"""Class of each value in a watershed mask."""
COLOURS = (
    (127, 127, 127), (210, 140, 140), (255, 114, 114), (231, 70, 156), (186, 183, 75), (170, 255, 0), (255, 85, 0),
    (255, 0, 0), (255, 255, 0), (169, 255, 184), (255, 160, 165), (0, 50, 128), (111, 74, 0),
)  # fmt: skip
"""Colour of each class of `cholecseg8k`, in order."""
_OF_COLOURS = {colour: place for place, colour in enumerate(COLOURS)} | {(0,) * 3: IGNORED, (255,) * 3: IGNORED}
_WATERSHED, _COLOUR = "watershed_mask", "color_mask"


class CholecSeg8k(Reader):
    CLASS_MAP = "cholecseg8k"
    RATE = 25.0
    IDS = VALUES | {0: IGNORED, 255: IGNORED}
    ALLOWED = "CholecSeg8k has thirteen classes, black and white; 'quarantine' sets frames aside"

    def folders(self, root: Path) -> dict[str, Path]:
        return video_folders(root, lambda path: any(path.glob(f"{path.name}_*/frame_*_endo.png")))

    def frames(self, root: Path, video: str) -> Listing:
        folder, images = self.folders(root)[video], self.images(root, video)
        masks = _files(folder, f"frame_*_endo_{_COLOUR}.png") | _files(folder, f"frame_*_endo_{_WATERSHED}.png")
        return paired(
            "label", images, masks,
            image=lambda number: masks[number].with_name(f"frame_{number}_endo.png"),
            file=lambda number: images[number].with_name(f"frame_{number}_endo_{_WATERSHED}.png"),
        )  # fmt: skip

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return _files(self.folders(root)[video], "frame_*_endo.png")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        if path.stem.endswith(_COLOUR):
            return map_colours(read_colours(path), _OF_COLOURS, path=path, allowed=self.ALLOWED)
        return super().read_target(name, files)


def _files(folder: Path, pattern: str) -> dict[int, Path]:
    """Return the files of all clips of a video by frame number; DataError if two clips have the same frame."""
    files: dict[int, Path] = {}
    for clip in sorted(folder.glob(f"{folder.name}_*")):
        for number, path in files_by_number(clip, pattern).items():
            if number in files:
                raise DataError(path, f"is a frame that {files[number].parent.name} has, too", "remove one of them")
            files[number] = path
    return files
