"""CholecSeg8k, laparoscopic cholecystectomy: tissue and instruments (Hong et al., arXiv 2012.12453).

    root/video01/video01_00080/frame_80_endo.png                     854x480, 25 a second, clips of 80
    root/video01/video01_00080/frame_80_endo_watershed_mask.png      grey values, one channel or three equal
    root/video01/video01_00080/frame_80_endo_color_mask.png          colours, read where the former is not there

Thirteen classes have a value and a colour each. Masks hold two more: white (255), a frame of one pixel, and black (0),
what was left out between two regions; both are `IGNORED`. Four masks have an alpha channel (in video18_01139,
video35_00780 and two in video37_00848), which is left out. The values that the official table calls #505050 are
decimal: 50, 50, 50. `cholecseg8k_merged` are the eight classes of EndoViT's experiments.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from shared_components.data.classes import IGNORED
from shared_components.data.files import DataError, by_number, read_colours, read_ids, video_folders
from shared_components.data.readers import Listing, Reader

VALUES = {50: 0, 11: 1, 21: 2, 13: 3, 12: 4, 31: 5, 23: 6, 24: 7, 25: 8, 32: 9, 22: 10, 33: 11, 5: 12}
"""Of a watershed mask, and the class of each."""
COLOURS = (
    (127, 127, 127),  # background
    (210, 140, 140),  # abdominal wall
    (255, 114, 114),  # liver
    (231, 70, 156),  # gastrointestinal tract
    (186, 183, 75),  # fat
    (170, 255, 0),  # grasper
    (255, 85, 0),  # connective tissue
    (255, 0, 0),  # blood
    (255, 255, 0),  # cystic duct
    (169, 255, 184),  # L-hook
    (255, 160, 165),  # gallbladder
    (0, 50, 128),  # hepatic vein
    (111, 74, 0),  # liver ligament
)
"""Of a colour mask, in the order of the classes."""
_UNLABELLED = (0, 255)
_WATERSHED, _COLOUR = "watershed_mask", "color_mask"
_REMEDY = "correct the mask, or set it aside by 'quarantine': CholecSeg8k has thirteen classes, black and white"


class CholecSeg8k(Reader):
    CLASS_MAP = "cholecseg8k"
    RATE = 25.0

    def folders(self, root: Path) -> dict[str, Path]:
        return video_folders(root, lambda path: any(path.glob(f"{path.name}_*/frame_*_endo.png")))

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        images = self.images(root, video)
        grey, coloured = (_files(folder, f"frame_*_endo_{kind}.png") for kind in (_WATERSHED, _COLOUR))
        masks = coloured | grey
        return [
            (
                number,
                images.get(number) or _beside(masks[number], number, "endo"),
                {"label": (masks.get(number) or _beside(images[number], number, f"endo_{_WATERSHED}"),)},
            )
            for number in sorted(images.keys() | masks.keys())
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return _files(self.folders(root)[video], "frame_*_endo.png")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        return _of_colours(path) if path.stem.endswith(_COLOUR) else _of_values(path)


def _files(folder: Path, pattern: str) -> dict[int, Path]:
    """List the files of all clips of a video by the frame's number in the video.

    Raises:
        DataError: two clips have the same frame.
    """
    found: dict[int, Path] = {}
    for clip in sorted(folder.glob(f"{folder.name}_*")):
        for number, path in by_number(clip, pattern).items():
            if number in found:
                raise DataError(path, f"is a frame that {found[number].parent.name} has, too", "remove one of them")
            found[number] = path
    return found


def _beside(path: Path, number: int, what: str) -> Path:
    return path.with_name(f"frame_{number}_{what}.png")


def _of_values(path: Path) -> np.ndarray:
    """Read a mask of grey values as uint8 (H, W) of classes."""
    values = read_ids(path)
    table = np.zeros(256, np.uint8)
    table[list(VALUES)] = list(VALUES.values())
    table[list(_UNLABELLED)] = IGNORED
    ids, counts = np.unique(values, return_counts=True)
    if odd := {int(i): int(n) for i, n in zip(ids, counts, strict=True) if i not in VALUES and i not in _UNLABELLED}:
        raise DataError(path, f"mask holds unknown ids {list(odd)[:8]} ({sum(odd.values())} such pixels)", _REMEDY)
    return np.asarray(cv2.LUT(values, table), dtype=np.uint8)


def _of_colours(path: Path) -> np.ndarray:
    """Read a mask of colours as uint8 (H, W) of classes."""
    rgb = read_colours(path).astype(np.int32)
    codes = rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2]  # (H, W, 3) -> (H, W)
    known = [(r << 16 | g << 8 | b, place) for place, (r, g, b) in enumerate(COLOURS)]
    classes = np.full(codes.shape, IGNORED, np.uint8)
    unknown = (codes != 0) & (codes != 0xFFFFFF)
    for code, place in known:
        here = codes == code
        classes[here] = place
        unknown &= ~here
    if unknown.any():
        row, column = np.argwhere(unknown)[0]
        colour = tuple(rgb[row, column].tolist())
        what = f"holds the unknown colour {colour} at row {row}, column {column} ({unknown.sum()} such pixels)"
        raise DataError(path, what, _REMEDY)
    return classes
