"""Base of the readers of images without targets; path patterns describe a layout.

They read the parts of Endo700k, for masked autoencoders (Batic et al., EndoViT, IJCARS 2024). A video file gives one
frame per second, decoded from the video.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from shared_components.data.files.images import DataError, natural_order
from shared_components.data.files.reader import Listing, Reader

_PER_SECOND = 25  # frames in the video files of all these data sets
FramesByVideo = dict[str, dict[int, Path]]
Used = Callable[[Path, list[Path]], list[Path]]


class Unlabelled(Reader):
    """A data set of only images, or of only video files."""

    TARGETS = ()

    FOLDERS: tuple[str, ...] = ()
    """Globs below the root; the first glob that matches a folder with files counts."""

    FILE: str = ""
    """Pattern of a file's path below the root, with groups "video" and "number". Without "number", images are counted
    in natural order of their paths."""

    FIRST: int = 0
    """First frame of a video file, and the offset in each later second."""

    def used(self, folder: Path, files: list[Path]) -> list[Path]:
        """Return the files of a folder, given in natural order, that a pre-training uses: by default all files."""
        return files

    def videos(self, root: Path) -> list[str]:
        return sorted(self._frames_by_video(root), key=natural_order)

    def frames(self, root: Path, video: str) -> Listing:
        return [(number, path, {}) for number, path in sorted(self.images(root, video).items())]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        files = self._frames_by_video(root).get(video, {})
        (first, *more) = files.values() or [root]
        if more or first.suffix.lower() not in (".mp4", ".avi"):
            return files
        from shared_components.data.files.video import frame_count  # late: few sites read videos

        return {number: first / f"{number:06d}" for number in range(self.FIRST, frame_count(first), _PER_SECOND)}

    def _frames_by_video(self, root: Path) -> FramesByVideo:
        return next(filter(None, (self._in(root, pattern) for pattern in self.FOLDERS)), {})

    def _in(self, root: Path, pattern: str) -> FramesByVideo:
        folders = [path for path in sorted(root.glob(pattern)) if path.is_dir()]
        return _listed(root, self.FILE, tuple((path, path.stat().st_mtime_ns) for path in folders), self.used)


@lru_cache(maxsize=8)
def _listed(root: Path, pattern: str, folders: tuple[tuple[Path, int], ...], used: Used) -> FramesByVideo:
    """Group the files of folders by video; the modification times make changed folders be read again."""
    videos: FramesByVideo = {}
    matches = {path: match for folder, _ in folders for path, match in _files(root, pattern, folder, used)}
    for path in sorted(matches, key=lambda path: natural_order(path.as_posix())):
        match = matches[path]
        images = videos.setdefault(match["video"], {})
        number = int(match.groupdict().get("number") or len(images))
        if number in images:
            raise DataError(path, f"has the same frame number as {images[number]}", "remove one of them")
        images[number] = path
    return videos


def _files(root: Path, pattern: str, folder: Path, used: Used) -> Iterator[tuple[Path, re.Match[str]]]:
    """Yield the files in a folder that match a layout and that a pre-training uses."""
    paths = (path for path in folder.iterdir() if not path.name.startswith("."))
    matches = {path: match for path in paths if (match := re.fullmatch(pattern, path.relative_to(root).as_posix()))}
    for path in used(folder, sorted(matches, key=lambda path: natural_order(path.as_posix()))) if matches else ():
        yield path, matches[path]
