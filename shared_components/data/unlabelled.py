"""Base of the readers of images without targets: two path patterns describe a layout.

These are the parts of Endo700k, for masked autoencoders (Batic et al., EndoViT, IJCARS 2024). Of a video file, one
frame per second is listed and decoded from the video.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from shared_components.data.files import DataError, natural_order
from shared_components.data.readers import Listing, Reader

_DIGITS = 6
_PER_SECOND = 25  # frames of all of these parts' video files
FramesByVideo = dict[str, dict[int, Path]]
Used = Callable[[Path, list[Path]], list[Path]]


class Unlabelled(Reader):
    """A dataset of images, or of video files, alone."""

    TARGETS = ()

    FOLDERS: tuple[str, ...] = ()
    """Globs below the root; the first that matches a folder with files says where they lie."""

    FILE: str = ""
    """Pattern for a file's whole path below the root. Its group "video" names the video, and "number" the frame;
    without "number", images are counted in natural order of their paths."""

    FIRST: int = 0
    """The first frame that is listed of a video file, and the place in each second of the later ones."""

    def used(self, folder: Path, files: list[Path]) -> list[Path]:
        """Return the files of a folder, given in natural order, that a pre-training uses: by default all of them.

        Raises:
            DataError: the folder lacks the files that decide this.
        """
        return files

    def videos(self, root: Path) -> list[str]:
        return sorted(self._frames_by_video(root), key=natural_order)

    def frames(self, root: Path, video: str) -> Listing:
        return [(number, path, {}) for number, path in sorted(self.images(root, video).items())]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        found = self._frames_by_video(root).get(video, {})
        (only, *more) = found.values() or [root]
        return found if more or only.suffix.lower() not in (".mp4", ".avi") else frames_of(only, self.FIRST)

    def _frames_by_video(self, root: Path) -> FramesByVideo:
        return next(filter(None, (self._in(root, pattern) for pattern in self.FOLDERS)), {})

    def _in(self, root: Path, pattern: str) -> FramesByVideo:
        folders = [path for path in sorted(root.glob(pattern)) if path.is_dir()]
        return _listed(root, self.FILE, tuple((path, path.stat().st_mtime_ns) for path in folders), self.used)


def frames_of(video: Path, first: int = 0) -> dict[int, Path]:
    """List one frame a second of a video file by number, from the first one on: video.mp4/000025.

    Raises:
        DataError: it is missing, damaged or no video.
    """
    from shared_components.data.video import frame_count  # late: few sites read videos

    return {number: video / f"{number:0{_DIGITS}d}" for number in range(first, frame_count(video), _PER_SECOND)}


@lru_cache(maxsize=8)
def _listed(root: Path, pattern: str, folders: tuple[tuple[Path, int], ...], used: Used) -> FramesByVideo:
    """Group the files of folders by video; read again where a folder was changed."""
    found: FramesByVideo = {}
    matches = {path: match for folder, _ in folders for path, match in _files(root, pattern, folder, used)}
    for path in sorted(matches, key=_natural):
        match = matches[path]
        images = found.setdefault(match["video"], {})
        number = int(match.groupdict().get("number") or len(images))
        if number in images:
            raise DataError(path, f"has the same frame number as {images[number]}", "remove one of them")
        images[number] = path
    return found


def _files(root: Path, pattern: str, folder: Path, used: Used) -> Iterator[tuple[Path, re.Match[str]]]:
    """Yield the files in a folder that match a layout and that a pre-training uses."""
    there = (path for path in folder.iterdir() if not path.name.startswith("."))
    matches = {path: re.fullmatch(pattern, path.relative_to(root).as_posix()) for path in there}
    found = {path: match for path, match in matches.items() if match}
    for path in used(folder, sorted(found, key=_natural)) if found else ():
        yield path, found[path]


def _natural(path: Path) -> tuple[tuple[str, int], ...]:
    return natural_order(path.as_posix())
