"""What readers of images without targets share: a layout is said by two patterns.

These are the parts of Endo700k, which a masked autoencoder learns (Batic et al., EndoViT, IJCARS 2024). Of a video
file, one frame a second is listed and decoded in place.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from shared_components.data.files import DataError, natural_order
from shared_components.data.readers import Listing, Reader

_DIGITS = 6
_PER_SECOND = 25  # frames of all of these parts' video files
Found = dict[str, dict[int, Path]]


class Unlabelled(Reader):
    """A dataset of images, or of video files, alone."""

    TARGETS = ()

    FOLDERS: tuple[str, ...] = ()
    """Globs below the root; the first that matches a folder with files says where they lie."""

    FILE: str = ""
    """What a file's path below the root matches, whole. Its group "video" names the video, or else "folder" does, and
    "number" the frame; without the latter, images are counted in natural order of their paths."""

    def videos(self, root: Path) -> list[str]:
        return sorted(self._found(root), key=natural_order)

    def frames(self, root: Path, video: str) -> Listing:
        return [(number, path, {}) for number, path in sorted(self.images(root, video).items())]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        found = self._found(root).get(video, {})
        (only, *more) = found.values() or [root]
        return found if more or not _is_video(only) else frames_of(only)

    def _found(self, root: Path) -> Found:
        return next(filter(None, (self._in(root, pattern) for pattern in self.FOLDERS)), {})

    def _in(self, root: Path, pattern: str) -> Found:
        folders = [path for path in sorted(root.glob(pattern)) if path.is_dir()]
        return _listed(root, self.FILE, tuple((path, path.stat().st_mtime_ns) for path in folders))


def frames_of(video: Path) -> dict[int, Path]:
    """List one frame a second of a video file by number: video.mp4/000025.

    Raises:
        DataError: it is missing, damaged or no video.
    """
    from shared_components.data.video import frame_count  # late: few sites read videos

    return {number: video / f"{number:0{_DIGITS}d}" for number in range(0, frame_count(video), _PER_SECOND)}


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in (".mp4", ".avi")


@lru_cache(maxsize=8)
def _listed(root: Path, pattern: str, folders: tuple[tuple[Path, int], ...]) -> Found:
    """Group the files of folders by video; read again where a folder was changed."""
    found: Found = {}
    paths = (path for folder, _ in folders for path in folder.iterdir() if not path.name.startswith("."))
    for path in sorted(paths, key=lambda path: natural_order(path.relative_to(root).as_posix())):
        match = re.fullmatch(pattern, path.relative_to(root).as_posix())
        if match is None:
            continue
        images = found.setdefault(match["video"] or match["folder"], {})
        number = int(match.groupdict().get("number") or len(images))
        if number in images:
            raise DataError(path, f"has the same frame number as {images[number]}", "remove one of them")
        images[number] = path
    return found
