"""PFedSIS's pack of EndoVis 2017, EndoVis 2018 and SAR-RARP50 (doi 10.5522/04/29356586).

    root = robotics_site_npy/siteN
    root/{train,test}/image/video3frame012.npy    uint8 (512, 640, 3) RGB
    root/{train,test}/mask/video3frame012.npy     uint8 (H, W); native size in test

The folder is part of a video's name: train/video3, test/video9. Sites 1 and 2 number two frames a second, site
3 sixty, by nine digits in steps of 60; all frames are labelled. The ids are taken to be canonical (1 shaft,
2 wrist, 3 clasper), the order in which the paper names the parts; the packing itself does not state them.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from shared_components.data.files import DataError, map_ids, natural_order, read_npy
from shared_components.data.readers import Listing, Reader

_PARTS = {0: 0, 1: 1, 2: 2, 3: 3}
_FOLDERS = ("train", "test")
_NAME = re.compile(r"(video\d+)frame(\d+)")


class PfedsisNpy(Reader):
    CLASS_MAP = "parts"
    IDS = _PARTS
    ALLOWED = "PFedSIS masks hold 0, 1 shaft, 2 wrist, 3 clasper"

    def videos(self, root: Path) -> list[str]:
        return [
            f"{folder}/{video}"
            for folder in _FOLDERS
            for video in sorted({name[1] for name in _names(root / folder, "image", "mask")}, key=natural_order)
        ]

    def frames(self, root: Path, video: str) -> Listing:
        folder, name = video.split("/")
        found = _numbered(_names(root / folder, "image", "mask"), name)
        return [
            (number, root / folder / "image" / file, {"label": (root / folder / "mask" / file,)})
            for number, file in sorted(found.items())
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        folder, name = video.split("/")
        found = _numbered(_names(root / folder, "image"), name)
        return {number: root / folder / "image" / file for number, file in sorted(found.items())}

    def native_targets(self, video: str) -> bool:
        return video.startswith("test/")

    def read_image(self, path: Path) -> np.ndarray:
        image = read_npy(path)
        if image.ndim != 3 or image.shape[2] != 3:
            raise DataError(path, f"has shape {image.shape}", "write the image as (H, W, 3)")
        return image

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        mask = read_npy(path)
        if mask.ndim != 2:
            raise DataError(path, f"has shape {mask.shape}", "write the mask as (H, W)")
        return map_ids(mask, self.IDS, path=path, allowed=self.ALLOWED)


def _numbered(names: list[re.Match[str]], video: str) -> dict[int, str]:
    return {int(match[2]): f"{match[0]}.npy" for match in names if match[1] == video}


def _names(folder: Path, *kinds: str) -> list[re.Match[str]]:
    """Match the names of all files of these kinds in a folder, without their endings."""
    files = {path.stem for kind in kinds for path in (folder / kind).glob("*.npy")}
    return [match for match in map(_NAME.fullmatch, sorted(files)) if match]
