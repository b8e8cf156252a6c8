"""Readers of a hospital's own data: masks as image files, or one label volume per video."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from shared_components.data.custom.description import Own
from shared_components.data.custom.layout import (
    Images,
    files_of,
    frame_path,
    images_of,
    numbered,
    placed,
    read_image,
    refuse_missing,
    video_names,
)
from shared_components.data.custom.masks import Volume, packed_volume, read_mask
from shared_components.data.files import DataError, frame_number
from shared_components.data.nifti import label_shape, refuse_other_shape
from shared_components.data.readers import Listing, Reader


@dataclass(frozen=True)
class _Own(Reader):
    """What both readers have in common."""

    own: Own

    def videos(self, root: Path) -> list[str]:
        return video_names(root, self.own.images)

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return self._images(root, video).by_number(self.own.first_frame)

    def read_image(self, path: Path) -> np.ndarray:
        return read_image(path)

    def _images(self, root: Path, video: str) -> Images:
        return images_of(root, self.own.images, video)


@dataclass(frozen=True)
class FramesReader(_Own):
    """Masks are image files that are called as their images, or as the number of a frame of the video file."""

    def frames(self, root: Path, video: str) -> Listing:
        images = self._images(root, video)
        masks, where = files_of(root, self.own.masks, video), placed(root, self.own.masks, video)
        if not masks:
            raise DataError(where, "holds no masks", "put them there (PNG) or correct 'masks' in site.yaml")
        listed = self._of_video(images, masks) if images.is_video else self._of_folder(images, masks, where)
        return [(number, image, {"label": (mask,)}) for number, image, mask in listed]

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        ids = self.own.ids
        return ids.apply(read_mask(path, coloured=ids.coloured, known=[value for value, _ in ids.table]), path)

    def _of_folder(self, images: Images, masks: dict[str, Path], where: Path) -> list[tuple[int, Path, Path]]:
        refuse_missing(
            where,
            [path.name for name, path in masks.items() if name not in images.files],
            f"holds masks without an image in {images.where} of the same name:",
            "add the images, remove the masks, or make their names equal",
        )
        if not self.own.partly_labelled:
            refuse_missing(
                images.where,
                [path.name for name, path in images.files.items() if name not in masks],
                f"holds images without a mask in {where} of the same name:",
                "add the masks, or write 'partly_labelled: true' in site.yaml if these are not labelled",
            )
        numbers = numbered(images.files)
        ordered = sorted(masks, key=numbers.__getitem__)
        return [(numbers[name], images.files[name], masks[name]) for name in ordered]

    def _of_video(self, images: Images, masks: dict[str, Path]) -> list[tuple[int, Path, Path]]:
        by_number: dict[int, Path] = {}
        for name, path in masks.items():
            if (number := _last_number(path, name)) in by_number:
                same = f"has the same frame number as {by_number[number].name}"
                raise DataError(path, same, "remove one of them")
            by_number[number] = path
        frames = images.by_number(self.own.first_frame)
        beyond = [path.name for number, path in by_number.items() if number not in frames]
        refuse_missing(
            images.where,
            beyond,
            f"has frames {min(frames)} to {max(frames)}, and there are masks of others:",
            "give every mask the number of its frame ('first_frame: 1' in site.yaml if they count from 1), or remove "
            "these masks",
        )
        return [(number, frames[number], by_number[number]) for number in sorted(by_number)]


@dataclass(frozen=True)
class NiftiReader(_Own):
    """All masks of a video are one label volume, its frames in the order of the images."""

    def frames(self, root: Path, video: str) -> Listing:
        path, images = placed(root, self.own.masks, video), sorted(self.images(root, video).items())
        if not path.is_file():
            raise DataError(path, "is missing", "put the label volume there or correct 'masks' in site.yaml")
        size = read_image(images[0][1]).shape[:2]
        refuse_other_shape(path, label_shape(path, axes=self.own.axes), frames=len(images), size=size)
        kept = self._volume(path).labelled if self.own.partly_labelled else range(len(images))
        if not kept:
            raise DataError(path, "has no label in any frame", "label some frames or take the video out of the split")
        return [(*images[place], {"label": (frame_path(path, place),)}) for place in kept]

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        volume = self._volume(path.parent)
        volume.refuse_unknown(self.own.ids)
        return self.own.ids.apply(volume.frame(int(path.name)), path)

    def _volume(self, path: Path) -> Volume:
        return packed_volume(path, axes=self.own.axes)


def own_reader(own: Own) -> Reader:
    """Return the reader of a description."""
    return cast(Reader, FramesReader(own) if own.kind == "frames" else NiftiReader(own))


def _last_number(path: Path, name: str) -> int:
    """Return the number of the frame that a mask is of."""
    return frame_number(path.with_name(f"{name}{path.suffix}"))
