"""EndoVis 2017, robotic instruments: part masks (Allan et al., arXiv 1902.06426).

    root/instrument_dataset_N/left_frames/frame000.png
    root/instrument_dataset_N/ground_truth/<Instrument>_labels/frame000.png

One mask folder per instrument; folders with 'Other' in the name (not robotic) are left out. Values: 10 shaft, 20 wrist,
30 claspers, 40 other. Frames and masks of 1920x1080 are cropped to the camera picture, 1280x1024 at (320, 28), as in
the challenge. Two frames per second, all labelled.

If instruments overlap, the part nearest the tip wins (clasper over wrist over shaft): the files do not contain which
instrument is in front, and this rule does not depend on the order of the folders.

The layout of ternaus/robot-surgery-segmentation (cropped_train: images/*.jpg, parts_masks/*.png with the ids times 85)
is read, too.
"""

from pathlib import Path

import numpy as np

from shared_components.data.files.images import DataError, files_by_number, map_ids, read_ids, read_rgb, video_folders
from shared_components.data.readers import Listing, Reader

_PARTS = {0: 0, 10: 1, 20: 2, 30: 3, 40: 0}
_ALLOWED = "EndoVis 2017 parts are 0, 10 shaft, 20 wrist, 30 clasper, 40 other"
_CROPPED_PARTS = {0: 0, 85: 1, 170: 2, 255: 3}
_CROPPED_ALLOWED = "the parts of a cropped_train folder are 0, 85 shaft, 170 wrist, 255 clasper"
_FULL_SIZE = (1080, 1920)
_CROP = (slice(28, 28 + 1024), slice(320, 320 + 1280))


class EndoVis2017(Reader):
    CLASS_MAP = "parts"
    RATE = 2.0

    def folders(self, root: Path) -> dict[str, Path]:
        return video_folders(root, lambda path: _image_folder(path).is_dir())

    def frames(self, root: Path, video: str) -> Listing:
        folder, images = self.folders(root)[video], self.images(root, video)
        image_folder = _image_folder(folder)
        cropped = image_folder.name == "images"
        mask_folders = [folder / "parts_masks"] if cropped else _instrument_folders(folder / "ground_truth")
        masks = {mask_folder: files_by_number(mask_folder, "*.png") for mask_folder in mask_folders}
        listing: Listing = []
        for number in sorted(set(images).union(*masks.values())):
            name = f"frame{number:03d}.png"
            label = tuple(files.get(number, mask_folder / name) for mask_folder, files in masks.items())
            listing.append((number, images.get(number, image_folder / name), {"label": label}))
        return listing

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return files_by_number(_image_folder(self.folders(root)[video]), "*.png", "*.jpg")

    def read_image(self, path: Path) -> np.ndarray:
        return _crop(read_rgb(path))

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        parts = [_crop(_read_parts(path)) for path in files]
        for path, part in zip(files, parts, strict=True):
            if part.shape != parts[0].shape:
                sizes = f"has shape {part.shape} but {files[0]} has {parts[0].shape}"
                raise DataError(path, sizes, "export both at the size of the frame")
        return np.maximum.reduce(parts)


def _read_parts(path: Path) -> np.ndarray:
    if path.parent.name == "parts_masks":
        return map_ids(read_ids(path), _CROPPED_PARTS, path=path, allowed=_CROPPED_ALLOWED)
    return map_ids(read_ids(path), _PARTS, path=path, allowed=_ALLOWED)


def _crop(array: np.ndarray) -> np.ndarray:
    return array[_CROP] if array.shape[:2] == _FULL_SIZE else array


def _image_folder(folder: Path) -> Path:
    cropped = (folder / "parts_masks").is_dir() or not (folder / "left_frames").is_dir()
    return folder / ("images" if cropped else "left_frames")


def _instrument_folders(ground_truth: Path) -> list[Path]:
    folders = sorted(path for path in ground_truth.glob("*") if path.is_dir() and "Other" not in path.name)
    if not folders:
        raise DataError(ground_truth, "contains no <Instrument>_labels folder", "unpack the ground truth here")
    return folders
