"""Find the image of an annotated frame in a folder, without following a path from an annotation file."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared_components.data.annotations.shapes import Annotations, Frame
from shared_components.data.files.image_headers import orientation, read_header
from shared_components.data.files.images import (
    DAMAGED,
    IMAGES,
    VIDEOS,
    VOLUMES,
    DataError,
    Size,
    folders_below,
    natural_order,
    reading,
)
from shared_components.data.files.nifti import is_colour_volume, picture_count, read_picture

_TURNED = 5  # first EXIF orientation that swaps height and width


@dataclass(frozen=True)
class Target:
    """The image of a frame and the path of its mask below the output folder; `video` for a frame of a video file."""

    path: Path
    mask: str
    video: bool = False


class ImageFolder:
    """Images and videos below a folder, found by their names.

    A name may contain folders of another machine. If several images have the same file name, the folders decide; the
    folder of the annotation file stands before a relative name.
    """

    def __init__(self, root: Path, *, without: Path) -> None:
        self.root = root.absolute()
        if without.absolute() in (self.root, *self.root.parents):
            raise DataError(without, "contains the images, and masks have their names", "give --out another folder")
        self._images: defaultdict[str, list[Path]] = defaultdict(list)
        self._videos: defaultdict[str, list[Path]] = defaultdict(list)  # files, and folders of images
        self._in_order: dict[Path, list[Path]] = {}
        for folder, names in folders_below(self.root):
            if without.absolute() not in (folder, *folder.parents):
                self._add(folder, names)
        self._unique = all(len(paths) == 1 for paths in self._images.values())
        if not self._videos:
            raise DataError(root, "contains no images or videos", "name the folder of the annotated images (--images)")

    def _add(self, folder: Path, names: Sequence[str]) -> None:
        images = [folder / name for name in names if name.lower().endswith(IMAGES)]
        for path in images:
            self._images[path.stem].append(path)
        if images:
            self._in_order[folder] = sorted(images, key=lambda path: natural_order(path.name))
            self._videos[folder.name].append(folder)
        for name in names:
            if name.lower().endswith(VIDEOS) or (name.lower().endswith(VOLUMES) and is_colour_volume(folder / name)):
                self._videos[_stem(name)].append(folder / name)

    def find(self, frame: Frame, annotations: Annotations) -> Target | None:
        """Return the image of a frame; None if it is not there, DataError if several images may be meant."""
        index = self._images if frame.place is None else self._videos
        path = next(filter(None, (self._find(index, name, annotations.path) for name in frame.names)), None)
        if path is None:
            return None
        if frame.place is None:
            return Target(path, self._mask(path))
        if path.is_dir():
            path = self._frame_of_folder(path, frame, annotations)
            return Target(path, self._mask(path))
        below = path.relative_to(self.root)
        if frame.place >= (count := _frame_count(path)):
            what = f"has frame {frame.place} of {below}, which has {count} frames"
            raise DataError(annotations.path, what, "name the folder of the annotated video with --images")
        return Target(path, f"{below.with_name(_stem(path.name)).as_posix()}/frame_{frame.place:06d}.png", video=True)

    def _mask(self, path: Path) -> str:
        return path.relative_to(self.root).with_suffix(".png").as_posix()

    def _find(self, index: Mapping[str, list[Path]], name: str, annotations: Path) -> Path | None:
        *folders, last = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")] or [""]
        candidates = index.get(_stem(last), [])
        if len(candidates) == 1 and (index is self._videos or self._unique):
            return candidates[0]
        wanted = _resolved([*annotations.absolute().parent.parts, *folders])
        scores = [_common_end(path.parent.parts, wanted) for path in candidates]
        top = max(scores, default=0)
        if not candidates or (folders and not top):
            return None
        best = [path for path, score in zip(candidates, scores, strict=True) if score == top]
        if len(best) > 1 or not top:
            places = " and ".join(path.relative_to(self.root).as_posix() for path in best[:2])
            what = f"has a frame {name!r:.100}, and below {self.root} there is {places}"
            raise DataError(annotations, what, "put the file beside its images, or name their folder with --images")
        return best[0]

    def _frame_of_folder(self, folder: Path, frame: Frame, annotations: Annotations) -> Path:
        """Return a frame of a folder of images: by CVAT's name `frame_000012`, or by place if their number agrees."""
        images = self._in_order[folder]
        assert frame.place is not None
        named = [path for path in images if path.stem == f"frame_{frame.place:06d}"]
        if named:
            return named[0]
        if frame.length in (None, len(images)) and frame.place < len(images):
            return images[frame.place]
        has = f"has frame {frame.place} of a video of {frame.length or 'unknown'} frames"
        what = f"{has}, and {folder.relative_to(self.root)} has {len(images)} images"
        raise DataError(annotations.path, what, "export the annotations with the images' names, or give all images")


def _stem(name: str) -> str:
    """Return a name without the extension of an image, video or volume."""
    endings = (*VOLUMES, *VIDEOS, *IMAGES, ".webp")
    return next((name[: -len(end)] for end in endings if name.lower().endswith(end)), name)


def _resolved(parts: Sequence[str]) -> list[str]:
    """Return the parts of a path after its `..` are resolved, without looking at the disk."""
    resolved: list[str] = []
    for part in parts:
        if part == "..":
            del resolved[-1:]
        else:
            resolved.append(part)
    return resolved


def _common_end(path: Sequence[str], wanted: Sequence[str]) -> int:
    """Return the number of equal folders at the end of two paths."""
    count = 0
    for a, b in zip(reversed(path), reversed(wanted), strict=False):
        if a != b:
            break
        count += 1
    return count


def image_size(path: Path) -> tuple[Size, Size]:
    """Return (H, W) of an image as programs show it, and as the file stores it; DataError if it is damaged."""
    with reading(path, "cannot be opened ({})", "check its rights", ValueError):
        header = read_header(path.read_bytes())
    if header.size is None or not header.complete:
        raise DataError(path, *DAMAGED)
    turned = orientation(path) >= _TURNED
    return (header.size[::-1] if turned else header.size), header.size


def video_size(path: Path) -> Size:
    """Return (H, W) of a video file or a volume of colours; DataError if it is damaged."""
    if path.name.lower().endswith(VOLUMES):
        return read_picture(path, 0).shape[:2]  # type: ignore[return-value]
    from shared_components.data.files.video import read_frame

    return read_frame(path, 0).shape[:2]  # type: ignore[return-value]


def _frame_count(path: Path) -> int:
    if path.name.lower().endswith(VOLUMES):
        return picture_count(path)
    from shared_components.data.files.video import frame_count

    return frame_count(path)
