"""PFedSIS's pack of EndoVis 2017, EndoVis 2018 and SAR-RARP50 (doi 10.5522/04/29356586).

    root = robotics_site_npy/siteN
    root/{train,test}/image/video3frame012.npy    uint8 (512, 640, 3) RGB
    root/{train,test}/mask/video3frame012.npy     uint8 (H, W); native size in test

The folder is part of a video's name: train/video3, test/video9. Frame numbers are two per second at sites 1 and 2, and
sixty per second at site 3, with nine digits in steps of 60; all frames are labelled. The pack does not state the ids:
they are assumed to be canonical (1 shaft, 2 wrist, 3 clasper), in the paper's order of the parts.
"""

import re
from pathlib import Path
from types import MappingProxyType

import numpy as np

from shared_components.data.files.images import DataError, map_ids, natural_order, read_npy
from shared_components.data.readers import Listing, Reader

_NAME = re.compile(r"(video\d+)frame(\d+)")


class PfedsisNpy(Reader):
    CLASS_MAP = "parts"
    IDS = MappingProxyType({0: 0, 1: 1, 2: 2, 3: 3})
    ALLOWED = "PFedSIS masks contain 0, 1 shaft, 2 wrist, 3 clasper"

    def videos(self, root: Path) -> list[str]:
        return [
            f"{folder}/{video}"
            for folder in ("train", "test")
            for video in sorted({name[1] for name in _names(root / folder, "image", "mask")}, key=natural_order)
        ]

    def frames(self, root: Path, video: str) -> Listing:
        folder, name = video.split("/")
        files = _numbered(_names(root / folder, "image", "mask"), name)
        images, masks = root / folder / "image", root / folder / "mask"
        return [(number, images / file, {"label": (masks / file,)}) for number, file in sorted(files.items())]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        folder, name = video.split("/")
        files = _numbered(_names(root / folder, "image"), name)
        return {number: root / folder / "image" / file for number, file in sorted(files.items())}

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
