"""Readers of a hospital's own data: masks as image files, or one label volume per video."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from shared_components.data.custom.class_masks import class_files, read_classes
from shared_components.data.custom.description import Own
from shared_components.data.custom.hashes import without_hash
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
from shared_components.data.custom.numbering import FRAMES, place_of
from shared_components.data.custom.smoothed import without_edges
from shared_components.data.files import DataError, frame_number
from shared_components.data.nifti import label_shape, refuse_other_shape
from shared_components.data.readers import Listing, Reader

Masks = dict[str, tuple[Path, ...]]
"""Files of the masks of each frame, by its name."""


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
        return images_of(root, self.own.images, video, self.own.masks)


@dataclass(frozen=True)
class FramesReader(_Own):
    """Masks are image files that are called as their images, or as the number of a frame of the video file."""

    def frames(self, root: Path, video: str) -> Listing:
        images = self._images(root, video)
        masks, where = self._masks(root, video, images), placed(root, self.own.masks, video)
        if not masks:
            raise DataError(where, "holds no masks", "put them there (PNG) or correct 'masks' in site.yaml")
        listed = self._of_video(images, masks) if images.is_video else self._of_folder(images, masks, where)
        return [(number, image, {"label": files}) for number, image, files in listed]

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        own = self.own
        if own.words:
            return read_classes(files, own.masks, dict(own.words), threshold=own.threshold)
        (path,) = files
        ids = own.ids
        mask = read_mask(path, coloured=ids.coloured, known=[value for value, _ in ids.table])
        return ids.apply(mask if own.threshold is None else self._without_edges(mask, own.threshold), path)

    def _without_edges(self, mask: np.ndarray, threshold: float) -> np.ndarray:
        table = self.own.ids.table
        background = [value for value, place in table if place == 0]
        return without_edges(mask, [value for value, _ in table], background=background, threshold=threshold)

    def _masks(self, root: Path, video: str, images: Images) -> Masks:
        if self.own.words:
            words = [word for word, _ in self.own.words]
            return class_files(root, self.own.masks, video, words=words, images=images.files)
        return {name: (path,) for name, path in files_of(root, self.own.masks, video).items()}

    def _of_folder(self, images: Images, masks: Masks, where: Path) -> list[tuple[int, Path, tuple[Path, ...]]]:
        refuse_missing(
            where,
            [files[0].name for name, files in masks.items() if name not in images.files],
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

    def _of_video(self, images: Images, masks: Masks) -> list[tuple[int, Path, tuple[Path, ...]]]:
        by_number: dict[int, tuple[Path, ...]] = {}
        frames = images.by_number(self.own.first_frame)
        numbers = mask_numbers(masks, self.own, images.where)
        for name, files in masks.items():
            if (number := numbers[name]) in by_number:
                same = f"has the same frame number as {by_number[number][0].name}"
                raise DataError(files[0], same, "remove one of them")
            by_number[number] = files
        beyond = [files[0].name for number, files in by_number.items() if number not in frames]
        refuse_missing(
            images.where,
            beyond,
            f"has frames {min(frames)} to {max(frames)}, and there are masks of others:",
            "give every mask the number of its frame ('first_frame: 1' in site.yaml if they count from 1), or remove "
            "these masks",
        )
        return [(number, frames[number], by_number[number]) for number in sorted(by_number)]


def mask_numbers(masks: Masks, own: Own, film: Path) -> dict[str, int]:
    """Return the frame number of each mask of a video file; a negative one, unlike others, if it has no such frame."""
    numbers = {name: frame_number(files[0].with_name(f"{without_hash(name)}.png")) for name, files in masks.items()}
    if own.mask_numbers == FRAMES:
        return numbers
    from shared_components.data.video import frame_seconds

    seconds, first = frame_seconds(film), own.first_frame
    places = {name: place_of(number - first, own.mask_numbers, seconds) for name, number in numbers.items()}
    return {name: -1 - n if place is None else place + first for n, (name, place) in enumerate(places.items())}


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
