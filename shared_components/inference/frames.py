"""Frames of a folder with its sub-folders, of an image, of a video or of a live stream, read one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.arguments import between
from shared_components.common.counted import counted
from shared_components.core.evaluation import network_input
from shared_components.data.custom.beside import masks_beside
from shared_components.data.custom.layout import is_volume
from shared_components.data.custom.scan import scan
from shared_components.data.files import IMAGES, DataError, natural_order, read_rgb
from shared_components.data.inventory import Inventory, left_out_files
from shared_components.inference import InferenceError
from shared_components.inference.live import LiveVideo, is_live
from shared_components.inference.video import Video, frames_of, look_at

MOST_PIXELS = 1 << 24
"""Of the network's input: 4096x4096, twice those of a 4K video."""
_CLOCK = 100_000  # the largest denominator of a rate


@dataclass(frozen=True)
class Shot:
    """One frame to predict."""

    name: str  # of its result files, such as `frame_000012`
    image: np.ndarray  # uint8 RGB (H, W, 3)
    sequence: str = ""  # its sub-folder, such as `day-1/left`; empty for a video, an image and the input folder itself
    seconds: Fraction | None = None  # since the first frame of its sequence; None where the rate is unknown

    @property
    def path(self) -> str:
        """Its name below the input: `day-1/left/frame12`."""
        return f"{self.sequence}/{self.name}" if self.sequence else self.name


class FrameStream:
    """Frames of a folder of images, an image file, a video file or a live stream, in order.

    Every sub-folder is a sequence of its own. Hidden files (`.name`) are skipped.

    Args:
        source: A folder, one image, or a video that FFmpeg can decode; as a text also a camera's number or a URL, whose
            frames are given once, see `LiveVideo`.
        height: Of the network's input; likewise `width`.
        every: Keep every n-th frame of a sequence.
        video_rate: Frames per second of a folder's images.

    Attributes:
        source: Its path, or the name of a live stream.
        rate: Frames per second of the kept frames; None where unknown.
        total: Number of frames; of a video as its container announces it, None where it does not.
        aspect: Width of a pixel over its height.
        inventory: Files of a folder that are used, and files left out, such as masks; None for other sources.

    Raises:
        InferenceError: The source is not given or missing, there are no images, the video cannot be read, or a number
            is wrong; and while iterating, an image cannot be read, or a video changes its size.
    """

    def __init__(
        self,
        source: str | Path | None,
        *,
        height: int,
        width: int,
        every: int = 1,
        video_rate: float | str | None = None,
    ) -> None:
        if source is None:
            raise InferenceError("input: not given; add --input with a folder of frames or a video file")
        if not 1 <= height * width <= MOST_PIXELS:
            raise InferenceError(
                f"the network's input is to be {height}x{width}; give a size of at most {MOST_PIXELS:,} pixels"
            )
        self.height, self.width = height, width
        try:
            between("input", "every", every, 1, whole=True)
        except ValueError as error:
            raise InferenceError(str(error)) from None
        self.every, rate = every, _rate(video_rate)
        self._video: Video | LiveVideo | None = None
        self._sequences: dict[str, list[Path]] = {}
        self.inventory: Inventory | None = None
        if is_live(source):
            self._video = LiveVideo(str(source), every=every)
            self.source: str | Path = self._video.name
        else:
            self.source = path = Path(source)
            data = InputFolder(path) if path.is_dir() else None
            self._sequences = _sequences(path, data)
            self.inventory = None if data is None else data.inventory("images")
            self._video = None if self._sequences else look_at(path)
        self.aspect = Fraction(1)
        self.total: int | None = sum(-(-len(paths) // every) for paths in self._sequences.values())
        if self._video is not None:
            if rate is not None:
                raise InferenceError(
                    f"a video rate was given, and {self.source} is a video, which has its own; leave --video-rate out"
                )
            rate, self.aspect = self._video.rate, self._video.aspect
            self.total = None if self._video.total is None else -(-self._video.total // self.every)
        self.rate = None if rate is None else rate / self.every

    @property
    def stem(self) -> str:
        """Of its results' names."""
        return self.live.stem if self.live else Path(self.source).resolve().stem

    @property
    def live(self) -> LiveVideo | None:
        """The live stream, if it is one."""
        return self._video if isinstance(self._video, LiveVideo) else None

    @property
    def is_video(self) -> bool:
        """Whether the source is a video."""
        return self._video is not None

    @property
    def sequences(self) -> int:
        """Number of folders that hold images; 1 of a video."""
        return max(1, len(self._sequences))

    def first(self) -> Shot:
        """Return the first frame."""
        return self._shot(*self.live.first) if self.live else next(self.shots())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield {"image": float32 (1, 3, height, width) in [0, 1], "shot": Shot}."""
        for shot in self.shots():
            yield {"image": network_input(shot.image[None], self.height, self.width), "shot": shot}

    @staticmethod
    def _shot(number: int, image: np.ndarray, seconds: Fraction) -> Shot:
        return Shot(f"frame_{number:06d}", image, seconds=seconds)

    def shots(self) -> Iterator[Shot]:
        """Yield the frames at their own size."""
        if isinstance(self._video, LiveVideo):
            yield from starmap(self._shot, self._video.frames())
        elif self._video is not None:
            yield from starmap(self._shot, frames_of(self._video, every=self.every))
        for sequence, paths in self._sequences.items():
            for number, path in enumerate(paths[:: self.every]):
                yield Shot(path.stem, _read(path), sequence, None if self.rate is None else number / self.rate)


class InputFolder:
    """The frames and videos below a folder; masks that lie beside them are left out.

    Raises:
        InferenceError: Git LFS has left pointers in the place of files.
    """

    def __init__(self, folder: Path) -> None:
        try:
            found = scan(folder)
        except DataError as error:
            raise InferenceError(str(error)) from None
        masks = masks_beside(found)
        self._kinds = {path: "masks" if path in masks else kind for path, kind in found.kinds().items()}
        self._kinds |= {
            path: "images" for path in found.kinds() if found.kinds()[path] == "masks" and path not in masks
        }
        self.folder = folder
        self.masks = {folder / path for path in masks}

    def paths(self, kind: str) -> list[Path]:
        """Return the files of a kind: `images` or `video files`."""
        return sorted(self.folder / path for path, one in self._kinds.items() if one == kind)

    def inventory(self, used: str) -> Inventory:
        """Return the inventory if the files of this kind are used."""
        taken = {path for path, kind in self._kinds.items() if kind == used}
        return Inventory({used: len(taken)}, left_out_files(self._kinds, taken, lambda path: _why(self._kinds[path])))


def _why(kind: str) -> str:
    return {"masks": "masks are not segmented", "unread files": "a format that is not read"}.get(kind, "no frames")


def videos_in(folder: Path, data: InputFolder | None = None) -> dict[str, Path]:
    """Return the videos of a folder and its sub-folders by the names of their results, in natural order.

    None of a file, or of a folder with images. InferenceError: two would have results of one name, or there are both
    images and videos.
    """
    if not folder.is_dir():
        return {}
    data = data or InputFolder(folder)
    images, films = data.paths("images"), [path for path in data.paths("video files") if not is_volume(path)]
    if images and films:
        raise InferenceError(
            f"{folder} holds {counted(len(images), 'image')}, such as {images[0]}, and "
            f"{counted(len(films), 'video')}, such as {films[0]}; "
            "name the folder of the images or one of the videos, or move one kind away"
        )
    videos: dict[str, Path] = {}
    for path in films:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in videos:
            raise InferenceError(
                f"{videos[name]} and {path} differ in their ending alone, and their results would have one name; "
                "rename one"
            )
        videos[name] = path
    for name in videos:
        if inside := next((other for other in videos if other.startswith(f"{name}/")), None):
            raise InferenceError(
                f"the results of {videos[inside]} would lie among those of {videos[name]}; rename one of them"
            )
    return {name: videos[name] for name in sorted(videos, key=_natural)}


def _sequences(source: Path, data: InputFolder | None) -> dict[str, list[Path]]:
    """Return the images by sub-folder, both in natural order; none for a file that is no image."""
    if not source.exists():
        raise InferenceError(f"input {source} does not exist; name a folder of frames or a video file")
    if data is None:
        return {"": [source]} if source.suffix.lower() in IMAGES else {}
    images: dict[Path, list[Path]] = {}
    for path in data.paths("images"):
        images.setdefault(path.parent, []).append(path)
    if not images:
        raise InferenceError(_no_images(source, data))
    relative = {"" if f == source else f.relative_to(source).as_posix(): f for f in images}
    return {name: _images(relative[name], images[relative[name]]) for name in sorted(relative, key=_natural)}


def _images(folder: Path, found: Sequence[Path]) -> list[Path]:
    if len({path.stem for path in found}) < len(found):
        raise InferenceError(
            f"input folder {folder} has images that differ in their ending alone, whose masks would overwrite "
            "each other; keep one of each"
        )
    return sorted(found, key=lambda path: natural_order(path.name))


def _no_images(source: Path, data: InputFolder) -> str:
    if videos := data.paths("video files"):
        return f"input folder {source} has videos and no images; name one of the videos, such as {min(videos)}"
    return (
        f"input folder {source} has no images ({', '.join(IMAGES)}), nor have its sub-folders; name the folder that "
        "holds the frames"
    )


def _natural(folder: str) -> list[tuple[tuple[str, int], ...]]:
    return [natural_order(part) for part in folder.split("/")] if folder else []


def _rate(given: float | str | None) -> Fraction | None:
    """Read `25`, `29.97` or `30000/1001`."""
    if given is None:
        return None
    try:
        rate = Fraction(str(given)).limit_denominator(_CLOCK)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not 0 < rate <= 1000:
        raise InferenceError(
            f"the video rate is {given!r}; give frames per second up to 1000, such as 25 or 30000/1001"
        )
    return rate


def _read(path: Path) -> np.ndarray:
    try:
        return read_rgb(path)
    except DataError as error:
        raise InferenceError(
            f"image {path} cannot be read ({error.what}); {error.what_to_do}, or move it out of the folder"
        ) from None
