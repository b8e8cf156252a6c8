"""Find the videos in a hospital's folders by path templates, the images of each video, and their masks."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shared_components.data.custom.description import CLASS, GROUP, VIDEO
from shared_components.data.custom.frame_names import FRAME_PATTERN, in_frame_order, numbered
from shared_components.data.files.images import IMAGES, VIDEOS, VOLUMES, DataError, folders_below, natural_order

_LISTED = 3  # files that an error message lists


@dataclass(frozen=True)
class Images:
    """A video's folder and its images by frame name; for a video file, its path and no images."""

    path: Path
    files: Mapping[str, Path]

    @property
    def is_video(self) -> bool:
        """Whether the images are frames of one file: a video or a volume of colours."""
        return not self.files

    def by_number(self, first: int = 0) -> dict[int, Path]:
        """Return the images by frame number, in order; frames of a video file count from `first`."""
        if self.is_video:
            if is_volume(self.path):
                from shared_components.data.files.nifti import picture_count as frame_count
            else:
                from shared_components.data.files.video import frame_count
            return {first + place: frame_path(self.path, place) for place in range(frame_count(self.path))}
        numbers = numbered(self.files)
        return {numbers[name]: path for name, path in self.files.items()}


def video_names(root: Path, template: str) -> list[str]:
    """List the videos that match a template, in natural order; DataError if there are none."""
    videos = _matches(root, template) if VIDEO in template else [(root.resolve().name, root / _folder(template))]
    names = [name for name, path in videos if _has_images(path, template, name)]
    if not names:
        what = f"contains no images or video files at {template!r}"
        raise DataError(root, what, f"correct 'root' or 'images' in site.yaml ({VIDEO} stands for a video's name)")
    return sorted(dict.fromkeys(names), key=natural_order)


def images_of(root: Path, template: str, video: str, masks: str = "") -> Images:
    """Find a video's images, without files that match the template `masks`; DataError if there are none."""
    path = placed(root, template, video)
    if path.is_file():
        return Images(path, {})
    if masks and masks != template and placed(root, masks, video) == path:
        is_mask = _pattern(masks, video)
        files = files_of(root, template, video, keep=lambda name: not is_mask.fullmatch(name))
    else:
        files = files_of(root, template, video)
    if not files:
        raise DataError(path, "contains no images", f"put them there ({', '.join(IMAGES)}) or correct 'images'")
    return Images(path, files)


def files_of(
    root: Path, template: str, video: str, *, keep: Callable[[str], bool] = lambda name: True
) -> dict[str, Path]:
    """Return a video's image files by frame name, in natural order; DataError for two files of a frame.

    `keep` receives a file name and returns whether the file counts.
    """
    folder = placed(root, template, video)
    files: dict[str, Path] = {}
    paths = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
    for path in map(paths.__getitem__, in_frame_order(paths)):
        if not (name := _frame(path.name, template, video)) or not keep(path.name):
            continue
        if name in files:
            raise DataError(path, f"is of the same frame as {files[name].name}", "keep one of the two")
        files[name] = path
    return files


def placed(root: Path, template: str, video: str) -> Path:
    """Return the folder or file of a video."""
    return root / of_video(_folder(template), video)


def frame_path(file: Path, place: int) -> Path:
    """Return the address of a frame in a video file or volume, counted from 0: video.mp4/000012."""
    return file / f"{place:06d}"


def refuse_missing(folder: Path, missing: Collection[str], what: str, what_to_do: str) -> None:
    """Raise a DataError that lists the first missing files and their number; do nothing if none is missing."""
    if missing:
        names = sorted(missing, key=natural_order)
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        raise DataError(folder, f"{what} {', '.join(names[:_LISTED])}{more}", what_to_do)


def is_volume(path: Path) -> bool:
    """Return whether a file is a NIfTI volume, by its name."""
    return path.name.lower().endswith(VOLUMES)


def _folder(template: str) -> str:
    folder, _, last = template.rpartition("/")
    return folder or "." if "*" in last else template


def _last(template: str) -> str:
    return template.rpartition("/")[2]


@lru_cache(maxsize=256)
def _pattern(template: str, video: str) -> re.Pattern[str]:
    last = _last(template)
    if "*" not in last:
        return re.compile(r"(?P<frame>.+)\.[^.]+")
    frame = FRAME_PATTERN if VIDEO in last else ".+?"
    before, after = (re.escape(part) for part in of_video(last, video).split("*"))
    return re.compile(f"{before}(?P<frame>{frame}){after}{_ending(last)}", re.IGNORECASE)


def _ending(last: str) -> str:
    return "" if Path(last).suffix else r"\.[^.]+"


def of_video(path: str, video: str) -> str:
    """Replace {video} and {group} in a template by a video's name `group/video`."""
    group, _, name = video.rpartition("/") if GROUP in path else ("", "", _last(video))
    return path.replace(GROUP, group).replace(VIDEO, name)


def _matches(root: Path, template: str) -> list[tuple[str, Path]]:
    """List (video, path) of all folders and files that match a template."""
    folder = _folder(template)
    in_folders = VIDEO in folder  # else {video} occurs only in file names
    if not in_folders and GROUP not in folder:
        return _videos_in_names(root / folder, _last(template), "")
    pattern = re.compile(_with_groups(folder, {GROUP: "(?P<group>.+?)", VIDEO: "(?P<video>[^/]+)"}))
    matches = [(pattern.fullmatch(path.relative_to(root).as_posix()), path) for path in _paths(root, folder)]
    if in_folders:
        return [(video_of(m), path) for m, path in matches if m and not m["video"].startswith(".")]
    return [pair for m, path in matches if m for pair in _videos_in_names(path, _last(template), m["group"])]


def _with_groups(template: str, groups: Mapping[str, str]) -> str:
    """Replace placeholders by named groups, and repeated placeholders by references to the first group."""
    pieces, seen = [], set[str]()
    for piece in re.split(f"({'|'.join(map(re.escape, groups))})", template):
        name = "frame" if piece == "*" else piece[1:-1]
        pieces.append(f"(?P={name})" if piece in seen else groups.get(piece) or re.escape(piece))
        seen |= {piece} & groups.keys()
    return "".join(pieces)


def file_pattern(template: str, words: Sequence[str] = (), *, frame: str = "") -> re.Pattern[str]:
    """Return the pattern of a template's file paths, with the groups `group`, `video`, `frame` and `class`.

    Only `words` may replace {class}, by default any word; `frame` is the name of the frame, by default any name.
    """
    last = _last(template)
    path = template if "*" in template or last.lower().endswith((*VIDEOS, *VOLUMES)) else f"{template}/*"
    classes = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "[^/]+?"
    groups = {
        GROUP: "(?P<group>.+?)",
        VIDEO: "(?P<video>[^/]+?)",
        CLASS: f"(?P<class>{classes})",
        "*": f"(?P<frame>{re.escape(frame) or (FRAME_PATTERN if VIDEO in last and '*' in last else '[^/]+?')})",
    }
    ending = "" if Path(_last(path)).suffix else r"\.[^./]+"
    return re.compile(_with_groups(path, groups) + ending, re.IGNORECASE)


def video_of(match: re.Match[str]) -> str:
    """Return the video of a matched path: `group/video`, or "" for a pattern without one."""
    groups = match.groupdict()
    return f"{groups.get('group') or ''}/{groups.get('video') or ''}".strip("/")


def _paths(root: Path, folder: str) -> Iterator[Path]:
    if GROUP not in folder:
        yield from root.glob(re.sub(r"([\[\]?])", r"[\1]", folder).replace(VIDEO, "*"))
        return
    for path, names in folders_below(root):
        yield path
        yield from (path / name for name in names)


def _videos_in_names(folder: Path, last: str, group: str) -> list[tuple[str, Path]]:
    """Find the videos of a folder whose file names consist of video name and number: {video}_*.png."""
    expression = re.escape(last).replace(re.escape(VIDEO), "(?P<video>.+?)").replace(re.escape("*"), FRAME_PATTERN)
    pattern = re.compile(expression + _ending(last), re.IGNORECASE)
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    videos = [match["video"] for name in names if not name.startswith(".") and (match := pattern.fullmatch(name))]
    return [(f"{group}/{video}".lstrip("/"), folder) for video in dict.fromkeys(videos)]


def _has_images(path: Path, template: str, video: str) -> bool:
    if path.is_file():
        last = _last(template)
        return "*" not in last and (path.suffix.lower() in VIDEOS or "." in last.replace(VIDEO, ""))
    return path.is_dir() and any(_frame(file.name, template, video) for file in path.iterdir())


def _frame(name: str, template: str, video: str) -> str:
    """Return the frame name of an image file; "" for other files and other videos."""
    if Path(name).suffix.lower() not in IMAGES or name.startswith("."):
        return ""
    match = _pattern(template, video).fullmatch(name)
    return match["frame"] if match else ""
