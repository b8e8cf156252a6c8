"""Read frames, one at a time, from a folder with sub-folders, an image, a video or a live stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.common.counted import counted
from shared_components.core.evaluation import network_input
from shared_components.data.custom.layout import is_volume
from shared_components.data.custom.list_files import scan
from shared_components.data.custom.masks_beside_frames import masks_beside
from shared_components.data.files.images import IMAGES, DataError, natural_order, read_rgb
from shared_components.data.files.inventory import Inventory, left_out_files
from shared_components.inference import InferenceError
from shared_components.inference.live import LiveVideo, is_live
from shared_components.inference.video import Video, frames_of, look_at

MOST_PIXELS = 1 << 24  # maximum number of pixels of the network's input: 4096x4096, about twice a 4K frame


@dataclass(frozen=True)
class Shot:
    """One frame to predict."""

    name: str  # name of the result files, such as `frame_000012`
    image: np.ndarray  # uint8 RGB (H, W, 3)
    sequence: str = ""  # sub-folder, such as `day-1/left`; empty for a video, an image and the input folder itself
    seconds: Fraction | None = None  # time since the first frame of the sequence; None if the rate is unknown
    suffix: str = ".png"  # ending of the image's file; for a video, of the images that are exported
    number: int | None = None  # number of the frame in its video, from 0; None for images

    @property
    def file(self) -> str:
        """Path of the image relative to the input, such as `day-1/left/frame12.jpg`."""
        return f"{self.path}{self.suffix}"

    @property
    def path(self) -> str:
        """Path relative to the input, such as `day-1/left/frame12`."""
        return f"{self.sequence}/{self.name}" if self.sequence else self.name


class FrameStream:
    """Frames of a folder of images, an image file, a video file or a live stream, in order.

    Each sub-folder is a sequence. Hidden files (`.name`) are skipped.

    Args:
        source: A folder, one image, or a video that FFmpeg can decode; as a string also a camera number or a URL, whose
            frames can be iterated once, see `LiveVideo`.
        height: Height of the network's input in pixels; likewise `width`.
        every: Keep every n-th frame of a sequence.
        video_rate: Frames per second of a folder's images.

    Attributes:
        source: Path, or the name of a live stream.
        rate: Frames per second of the kept frames; None if unknown.
        total: Number of kept frames, for a video from its header; None if unknown.
        aspect: Pixel aspect ratio, width over height.
        inventory: Used and skipped files of a folder; None for other sources.
        live: The live stream; None for other sources.
        is_video: Whether the source is a video or a live stream.
        stem: Name of the results.
        sequences: Number of folders with images; 1 for a video.

    Raises InferenceError: the source is missing, has no images or cannot be read, or an argument is invalid; while
    iterating, an image cannot be read, or a video changes its size.
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
            raise InferenceError(f"the input size is {height}x{width}; give a size of at most {MOST_PIXELS:,} pixels")
        self.height, self.width = height, width
        if type(every) is not int or every < 1:
            raise InferenceError(f"input: every is {every!r}; it is a whole number, at least 1")
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
                raise InferenceError(f"{self.source} is a video and has its own frame rate; remove --video-rate")
            rate, self.aspect = self._video.rate, self._video.aspect
            self.total = None if self._video.total is None else -(-self._video.total // self.every)
        self.rate = None if rate is None else rate / self.every

        self.live = self._video if isinstance(self._video, LiveVideo) else None
        self.is_video = self._video is not None
        self.stem = self.live.stem if self.live else Path(self.source).resolve().stem
        self.sequences = max(1, len(self._sequences))

    def first(self) -> Shot:
        """Return the first frame."""
        return _video_shot(*self.live.first) if self.live else next(self.shots())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield {"image": float32 (1, 3, height, width) in [0, 1], "shot": Shot}."""
        for shot in self.shots():
            yield {"image": network_input(shot.image[None], self.height, self.width), "shot": shot}

    def shots(self) -> Iterator[Shot]:
        """Yield the frames at their original size."""
        if isinstance(self._video, LiveVideo):
            yield from starmap(_video_shot, self._video.frames())
        elif self._video is not None:
            yield from starmap(_video_shot, frames_of(self._video, every=self.every))
        for sequence, paths in self._sequences.items():
            for number, path in enumerate(paths[:: self.every]):
                seconds = None if self.rate is None else number / self.rate
                yield Shot(path.stem, _read(path), sequence, seconds, path.suffix)


def _video_shot(number: int, image: np.ndarray, seconds: Fraction) -> Shot:
    return Shot(f"frame_{number:06d}", image, seconds=seconds, number=number)


class InputFolder:
    """Images and videos below a folder, without masks.

    Raises InferenceError: files are Git LFS pointers instead of data.
    """

    def __init__(self, folder: Path) -> None:
        try:
            files = scan(folder)
        except DataError as error:
            raise InferenceError(str(error)) from None
        masks = masks_beside(files)
        kinds = {path: "images" if kind == "masks" else kind for path, kind in files.kinds().items()}
        self._kinds = {path: "masks" if path in masks else kind for path, kind in kinds.items()}
        self.folder = folder

    def paths(self, kind: str) -> list[Path]:
        """Return the files of a kind, `images` or `video files`."""
        return sorted(self.folder / path for path, own in self._kinds.items() if own == kind)

    def inventory(self, used: str) -> Inventory:
        """Return the inventory of a run that uses the files of this kind."""
        paths = {path for path, kind in self._kinds.items() if kind == used}
        why = {"masks": "masks are not segmented", "unread files": "a format that is not read"}
        left_out = left_out_files(self._kinds, paths, lambda path: why.get(self._kinds[path], "no frames"))
        return Inventory({used: len(paths)}, left_out)


def videos_in(folder: Path, data: InputFolder | None = None) -> dict[str, Path]:
    """Return the videos of a folder and its sub-folders by result name, in natural order.

    The result is empty for a file and for a folder of images.

    Raises InferenceError: two videos have the same result name, or the folder contains both images and videos.
    """
    if not folder.is_dir():
        return {}
    data = data or InputFolder(folder)
    images, films = data.paths("images"), [path for path in data.paths("video files") if not is_volume(path)]
    if images and films:
        raise InferenceError(
            f"{folder} contains {counted(len(images), 'image')}, such as {images[0]}, and "
            f"{counted(len(films), 'video')}, such as {films[0]}; give the folder of the images or one of the videos"
        )
    videos: dict[str, Path] = {}
    for path in films:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in videos:
            raise InferenceError(
                f"{videos[name]} and {path} differ only in their extension and would have the same result name; "
                "rename one"
            )
        videos[name] = path
    for name in videos:
        if inside := [other for other in videos if other.startswith(f"{name}/")]:
            raise InferenceError(
                f"the results of {videos[inside[0]]} would lie among the results of {videos[name]}; rename one of them"
            )
    return {name: videos[name] for name in sorted(videos, key=_natural)}


def _sequences(source: Path, data: InputFolder | None) -> dict[str, list[Path]]:
    """Return the images by sub-folder, both in natural order; empty for a file that is not an image."""
    if not source.exists():
        raise InferenceError(f"input {source} does not exist; give a folder of frames or a video file")
    if data is None:
        return {"": [source]} if source.suffix.lower() in IMAGES else {}
    images: dict[Path, list[Path]] = {}
    for path in data.paths("images"):
        images.setdefault(path.parent, []).append(path)
    for folder, paths in images.items():
        if len({path.stem for path in paths}) < len(paths):
            raise InferenceError(
                f"input folder {folder} has images that differ only in their extension, so their masks would overwrite "
                "each other; keep one of each"
            )
        paths.sort(key=lambda path: natural_order(path.name))
    if not images and (videos := data.paths("video files")):
        raise InferenceError(f"input folder {source} has videos but no images; give a video, such as {min(videos)}")
    if not images:
        raise InferenceError(
            f"input folder {source} and its sub-folders have no images ({', '.join(IMAGES)}); give the folder of the "
            "frames"
        )
    relative = {"" if f == source else f.relative_to(source).as_posix(): f for f in images}
    return {name: images[relative[name]] for name in sorted(relative, key=_natural)}


def _natural(folder: str) -> list[tuple[tuple[str, int], ...]]:
    return [natural_order(part) for part in folder.split("/")] if folder else []


def _rate(value: float | str | None) -> Fraction | None:
    """Parse a frame rate, such as `25`, `29.97` or `30000/1001`."""
    if value is None:
        return None
    try:
        rate = Fraction(str(value)).limit_denominator(100_000)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not 0 < rate <= 1000:
        raise InferenceError(f"the video rate is {value!r}; give frames per second up to 1000, such as 30000/1001")
    return rate


def _read(path: Path) -> np.ndarray:
    try:
        return read_rgb(path)
    except DataError as error:
        raise InferenceError(
            f"image {path} cannot be read ({error.what}); {error.what_to_do}, or move it out of the folder"
        ) from None
