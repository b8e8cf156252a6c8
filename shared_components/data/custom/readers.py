"""Readers of a hospital's own data: masks as image files, or one label volume per video."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from shared_components.data.custom import layout
from shared_components.data.custom.class_masks import Masks, masks_of, read_classes
from shared_components.data.custom.description import Own
from shared_components.data.custom.frame_names import ALL_FRAMES, hashless_number, numbered, place_of
from shared_components.data.custom.masks import Volume, packed_volume, read_mask, without_edges
from shared_components.data.files.images import DataError
from shared_components.data.readers import Listing, Reader


@dataclass(frozen=True)
class _OwnReader(Reader):
    own: Own

    def videos(self, root: Path) -> list[str]:
        return layout.video_names(root, self.own.images)

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return layout.images_of(root, self.own.images, video, self.own.masks).by_number(self.own.first_frame)

    def read_image(self, path: Path) -> np.ndarray:
        if not (layout.is_volume(path.parent) and path.parent.is_file()):
            return super().read_image(path)
        from shared_components.data.files.nifti import read_picture

        return read_picture(path.parent, int(path.name))


@dataclass(frozen=True)
class FramesReader(_OwnReader):
    """Reader of mask files with the names of their images, or the frame numbers of a video file."""

    def frames(self, root: Path, video: str) -> Listing:
        own, folder = self.own, layout.placed(root, self.own.masks, video)
        images = layout.images_of(root, own.images, video, own.masks)
        masks = own_masks(root, own, video, images.files)
        if not masks:
            raise DataError(folder, "contains no masks", "put them there (PNG) or correct 'masks' in site.yaml")
        return self._of_video(images, masks) if images.is_video else self._of_folder(images, masks, folder)

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        own = self.own
        if own.words:
            return read_classes(files, own.masks, dict(own.words), threshold=own.threshold)
        (path,) = files
        values = [value for value, _ in own.ids.table]
        mask = read_mask(path, coloured=own.ids.coloured, known=values)
        if own.threshold is not None:
            background = [value for value, number in own.ids.table if number == 0]
            mask = without_edges(mask, values, background=background, threshold=own.threshold)
        return own.ids.apply(mask, path)

    def _of_folder(self, images: layout.Images, masks: Masks, folder: Path) -> Listing:
        unpaired = [files[0].name for name, files in masks.items() if name not in images.files]
        what = f"contains masks without an image in {images.path} of the same name:"
        layout.refuse_missing(folder, unpaired, what, "add the images, remove the masks, or make their names equal")
        if not self.own.partly_labelled:
            bare = [path.name for name, path in images.files.items() if name not in masks]
            what = f"contains images without a mask in {folder} of the same name:"
            remedy = "add the masks, or write 'partly_labelled: true' in site.yaml if these are not labelled"
            layout.refuse_missing(images.path, bare, what, remedy)
        numbers = numbered(images.files)
        names = sorted(masks, key=numbers.__getitem__)
        return [(numbers[name], images.files[name], {"label": masks[name]}) for name in names]

    def _of_video(self, images: layout.Images, masks: Masks) -> Listing:
        by_number: dict[int, tuple[Path, ...]] = {}
        frames = images.by_number(self.own.first_frame)
        numbers = mask_numbers(masks, self.own, images.path)
        for name, files in masks.items():
            if (number := numbers[name]) in by_number:
                same = f"has the same frame number as {by_number[number][0].name}"
                raise DataError(files[0], same, "remove one of them")
            by_number[number] = files
        others = [files[0].name for number, files in by_number.items() if number not in frames]
        what = f"has frames {min(frames)} to {max(frames)}, and there are masks of others:"
        remedy = "give every mask the number of its frame ('first_frame: 1' in site.yaml if they count from 1)"
        layout.refuse_missing(images.path, others, what, f"{remedy}, or remove these masks")
        return [(number, frames[number], {"label": by_number[number]}) for number in sorted(by_number)]


def own_masks(root: Path, own: Own, video: str, images: Mapping[str, Path]) -> Masks:
    """Return the mask files of each frame, given the video's images by frame name."""
    return masks_of(root, own.masks, video, words=[word for word, _ in own.words], images=images)


def mask_numbers(masks: Masks, own: Own, video: Path) -> dict[str, int]:
    """Return the frame number of each mask of a video file; distinct negative numbers for masks without a frame."""
    numbers = {name: hashless_number(files[0], name) for name, files in masks.items()}
    if own.mask_numbers == ALL_FRAMES:
        return numbers
    from shared_components.data.files.video import frame_seconds

    seconds, first = frame_seconds(video), own.first_frame
    places = {name: place_of(number - first, own.mask_numbers, seconds) for name, number in numbers.items()}
    return {name: -1 - n if place is None else place + first for n, (name, place) in enumerate(places.items())}


@dataclass(frozen=True)
class NiftiReader(_OwnReader):
    """Reader of label volumes, whose frames are in the order of the images."""

    def frames(self, root: Path, video: str) -> Listing:
        from shared_components.data.files.nifti import label_shape, refuse_other_shape

        path, images = layout.placed(root, self.own.masks, video), sorted(self.images(root, video).items())
        if not path.is_file():
            raise DataError(path, "is missing", "put the label volume there or correct 'masks' in site.yaml")
        size = self.read_image(images[0][1]).shape[:2]
        refuse_other_shape(path, label_shape(path, axes=self.own.axes), frames=len(images), size=size)
        places = self._volume(path).labelled if self.own.partly_labelled else range(len(images))
        if not places:
            raise DataError(path, "has no label in any frame", "label some frames or take the video out of the split")
        return [(*images[place], {"label": (layout.frame_path(path, place),)}) for place in places]

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        volume = self._volume(path.parent)
        volume.refuse_unknown(self.own.ids)
        return self.own.ids.apply(volume.frame(int(path.name)), path)

    def _volume(self, path: Path) -> Volume:
        return packed_volume(path, axes=self.own.axes)


def own_reader(own: Own) -> Reader:
    return cast(Reader, FramesReader(own) if own.kind == "frames" else NiftiReader(own))
