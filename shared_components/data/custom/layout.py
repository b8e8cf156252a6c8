"""Find the videos of a hospital's own folders, the images of each, and the mask of each image."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from shared_components.data.custom.description import CLASS, GROUP, VIDEO
from shared_components.data.custom.hashes import HASH, without_hashes
from shared_components.data.files import (
    IMAGES,
    VIDEOS,
    VOLUMES,
    DataError,
    folders_below,
    frame_number,
    natural_order,
    read_rgb,
)

_DIGITS = 6
_NAMED = 3  # files that an error lists
_FRAME = rf"(?:{HASH}[_\-.])?\d+(?:[^/\d]*?{HASH})?"  # a frame's number, with the hash that an export added


@dataclass(frozen=True)
class Images:
    """The images of one video by the name of the frame; of a video file there is the file alone."""

    where: Path
    files: Mapping[str, Path]

    @property
    def is_video(self) -> bool:
        """Whether they are the frames of one file: a video, or a volume of colours."""
        return not self.files

    def by_number(self, first: int = 0) -> dict[int, Path]:
        """List the images by number, in order; those of a video file count from `first`."""
        if self.is_video:
            count = _frame_count(self.where)
            return {first + place: frame_path(self.where, place) for place in range(count)}
        numbers = numbered(self.files)
        return {numbers[name]: path for name, path in self.files.items()}


def video_names(root: Path, template: str) -> list[str]:
    """List the videos that lie as a template says, in natural order.

    Raises:
        DataError: there are none.
    """
    if VIDEO not in template:
        listed = [(root.resolve().name, root / _folder(template))]
    else:
        listed = _matches(root, template)
    found = [name for name, path in listed if _holds_images(path, template, name)]
    if not found:
        what = f"holds no images or video files at {template!r}"
        raise DataError(root, what, f"correct 'root' or 'images' in site.yaml ({VIDEO} stands for a video's name)")
    return sorted(dict.fromkeys(found), key=natural_order)


def images_of(root: Path, template: str, video: str, masks: str = "") -> Images:
    """Find the images of a video; files that match the template of ``masks`` are left out.

    Raises:
        DataError: there are none, or two of one name.
    """
    path = placed(root, template, video)
    if path.is_file():
        return Images(path, {})
    if masks and masks != template and placed(root, masks, video) == path:
        is_mask = _pattern(masks, video)
        files = files_of(root, template, video, keep=lambda name: not is_mask.fullmatch(name))
    else:
        files = files_of(root, template, video)
    if not files:
        raise DataError(path, "holds no images", f"put them there ({', '.join(IMAGES)}) or correct 'images'")
    return Images(path, files)


def files_of(
    root: Path, template: str, video: str, *, keep: Callable[[str], bool] = lambda name: True
) -> dict[str, Path]:
    """List the image files of one video by the name of their frame, in natural order.

    Args:
        keep: whether a file of this name is listed.

    Raises:
        DataError: two files are of one frame.
    """
    folder = placed(root, template, video)
    found: dict[str, Path] = {}
    paths = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
    for path in map(paths.__getitem__, in_frame_order(paths)):
        if not (name := _frame(path.name, template, video)) or not keep(path.name):
            continue
        if name in found:
            what = f"is of the same frame as {found[name].name}"
            raise DataError(path, what, "keep one of the two")
        found[name] = path
    return found


def placed(root: Path, template: str, video: str) -> Path:
    """Return the folder or file of one video, without what names its frames."""
    return root / of_video(_folder(template), video)


def in_frame_order(names: Iterable[str]) -> list[str]:
    """Return frames' names in natural order, whatever hash an export put before or behind their numbers."""
    plain = without_hashes(names)
    return sorted(plain, key=lambda name: (natural_order(plain[name]), natural_order(name)))


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Number frames by the last number in their names, or by their place where that is not their order."""
    ordered = in_frame_order(names)
    plain = without_hashes(ordered)
    if all(re.search(r"\d", name) for name in plain.values()):
        found = {name: frame_number(Path(f"{plain[name]}.png")) for name in ordered}
        if all(before < after for before, after in pairwise(found.values())):
            return found
    return {name: place for place, name in enumerate(ordered)}


def frame_path(file: Path, place: int) -> Path:
    """Return the name of a frame of a video file, or of a volume, counted from 0: video.mp4/000012."""
    return file / f"{place:0{_DIGITS}d}"


def read_image(path: Path) -> np.ndarray:
    """Read an image file, or a frame of a video file or a volume, as uint8 RGB (H, W, 3)."""
    if path.parent.is_file() and is_volume(path.parent):
        from shared_components.data.nifti import read_picture

        return read_picture(path.parent, int(path.name))
    if path.parent.is_file():
        from shared_components.data.video import read_frame

        return read_frame(path.parent, int(path.name))
    return read_rgb(path)


def refuse_missing(folder: Path, missing: Collection[str], what: str, what_to_do: str) -> None:
    """Raise a DataError that names the first of the frames that miss something, and how many do."""
    if missing:
        listed = sorted(missing, key=natural_order)
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        raise DataError(folder, f"{what} {', '.join(listed[:_NAMED])}{more}", what_to_do)


def is_volume(path: Path) -> bool:
    """Say whether a file is a NIfTI volume, by its name."""
    return path.name.lower().endswith(VOLUMES)


def _frame_count(path: Path) -> int:
    if is_volume(path):
        from shared_components.data.nifti import picture_count

        return picture_count(path)
    from shared_components.data.video import frame_count

    return frame_count(path)


def _folder(template: str) -> str:
    folder, _, last = template.rpartition("/")
    return folder or "." if "*" in last else template


@lru_cache(maxsize=256)
def _pattern(template: str, video: str) -> re.Pattern[str]:
    """Return what the names of a video's files are like."""
    last = _last(template)
    if "*" not in last:
        return re.compile(r"(?P<frame>.+)\.[^.]+")
    frame = _FRAME if VIDEO in last else ".+?"
    before, after = (re.escape(part) for part in of_video(last, video).split("*"))
    ending = "" if Path(last).suffix else r"\.[^.]+"
    return re.compile(f"{before}(?P<frame>{frame}){after}{ending}", re.IGNORECASE)


def of_video(path: str, video: str) -> str:
    """Put a video's name into a template; what stands before its last slash is the group."""
    group, _, name = video.rpartition("/") if GROUP in path else ("", "", video.rpartition("/")[2])
    return path.replace(GROUP, group).replace(VIDEO, name)


def _matches(root: Path, template: str) -> list[tuple[str, Path]]:
    """List (video, path) of everything that lies as a template says."""
    folder = _folder(template)
    if VIDEO not in folder:  # {video} is in the names of files only
        return [one for path, group in _places(root, folder) for one in _videos_in_names(path, _last(template), group)]
    return [(_with_group(group, video), path) for path, group, video in _named_places(root, folder)]


def _named_places(root: Path, folder: str) -> list[tuple[Path, str, str]]:
    pattern = place_pattern(folder)
    found = [(pattern.fullmatch(path.relative_to(root).as_posix()), path) for path in _paths(root, folder)]
    named = [(path, match.groupdict().get("group", ""), match["video"]) for match, path in found if match]
    return [one for one in named if not one[2].startswith(".")]


def _places(root: Path, folder: str) -> list[tuple[Path, str]]:
    """List (folder, group) of the folders that a template without {video} names."""
    if GROUP not in folder:
        return [(root / folder, "")]
    pattern = place_pattern(folder)
    found = [(pattern.fullmatch(path.relative_to(root).as_posix()), path) for path in _paths(root, folder)]
    return [(path, match["group"]) for match, path in found if match]


def place_pattern(folder: str) -> re.Pattern[str]:
    """Return the pattern of the paths of a template's folders or video files."""
    named = {GROUP: "(?P<group>.+?)", VIDEO: "(?P<video>[^/]+)"}
    pieces, seen = [], set[str]()
    for piece in re.split(rf"({re.escape(GROUP)}|{re.escape(VIDEO)})", folder):
        again = f"(?P={piece[1:-1]})" if piece in seen else named.get(piece)
        pieces.append(re.escape(piece) if again is None else again)
        seen |= {piece} & named.keys()
    return re.compile("".join(pieces))


def file_pattern(template: str, words: Sequence[str] = (), *, frame: str = "") -> re.Pattern[str]:
    """Return the pattern of a template's file paths, with the groups `group`, `video`, `frame` and `class`.

    Args:
        words: words that may replace {class}; none: any word.
        frame: name of the frame; "": any name.
    """
    last = _last(template)
    path = template if "*" in template or last.lower().endswith((*VIDEOS, *VOLUMES)) else f"{template}/*"
    classes = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "[^/]+?"
    named = {
        GROUP: "(?P<group>.+?)",
        VIDEO: "(?P<video>[^/]+?)",
        CLASS: f"(?P<class>{classes})",
        "*": f"(?P<frame>{re.escape(frame) or (_FRAME if VIDEO in last and '*' in last else '[^/]+?')})",
    }
    names = {GROUP: "group", VIDEO: "video", CLASS: "class", "*": "frame"}
    pieces, seen = [], set[str]()
    for piece in re.split(r"(\{group\}|\{video\}|\{class\}|\*)", path):
        pieces.append(f"(?P={names[piece]})" if piece in seen else named.get(piece) or re.escape(piece))
        seen |= {piece} & named.keys()
    ending = "" if Path(_last(path)).suffix else r"\.[^./]+"
    return re.compile("".join(pieces) + ending, re.IGNORECASE)


def video_of(match: re.Match[str]) -> str:
    """Return the name of the video of a path that `file_pattern` matches: `group/video`, or "" without one."""
    found = match.groupdict()
    return _with_group(found.get("group") or "", found.get("video") or "")


def _paths(root: Path, folder: str) -> Iterator[Path]:
    if GROUP not in folder:
        yield from root.glob(re.sub(r"([\[\]?])", r"[\1]", folder).replace(VIDEO, "*"))
        return
    for path, names in folders_below(root):
        yield path
        yield from (path / name for name in names)


def _with_group(group: str, video: str) -> str:
    return f"{group}/{video}" if group else video


def _videos_in_names(folder: Path, last: str, group: str) -> list[tuple[str, Path]]:
    """Find the videos of a folder whose files begin with the video's name, and end with a number: {video}_*.png."""
    expression = re.escape(last).replace(re.escape(VIDEO), "(?P<video>.+?)").replace(re.escape("*"), _FRAME)
    pattern = re.compile(expression + ("" if Path(last).suffix else r"\.[^.]+"), re.IGNORECASE)
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = [match["video"] for name in names if not name.startswith(".") and (match := pattern.fullmatch(name))]
    return [(_with_group(group, video), folder) for video in dict.fromkeys(found)]


def _holds_images(path: Path, template: str, video: str) -> bool:
    if path.is_file():
        last = _last(template)
        return "*" not in last and (path.suffix.lower() in VIDEOS or "." in last.replace(VIDEO, ""))
    names: Sequence[str] = [file.name for file in path.iterdir()] if path.is_dir() else ()
    return any(_frame(name, template, video) for name in names)


def _frame(name: str, template: str, video: str) -> str:
    """Return the name of the frame that a file is of; nothing where it is no image, or none of this video."""
    if Path(name).suffix.lower() not in IMAGES or name.startswith("."):
        return ""
    match = _pattern(template, video).fullmatch(name)
    return match["frame"] if match else ""


def _last(template: str) -> str:
    return template.rpartition("/")[2]
