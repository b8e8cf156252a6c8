"""Take the inventory of a site's own data or public data set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from shared_components.common.counted import counted
from shared_components.data.custom.class_masks import class_files
from shared_components.data.custom.description import CLASS, VIDEO, Own
from shared_components.data.custom.ids import BACKGROUND
from shared_components.data.custom.layout import files_of, images_of, placed, video_names
from shared_components.data.custom.readers import mask_numbers, own_reader
from shared_components.data.custom.scan import Scan, scan
from shared_components.data.files import DataError, folders_below
from shared_components.data.inventory import Inventory, LeftOut, left_out_files
from shared_components.data.readers import Reader
from shared_components.data.site import SPLITS, Site, Source

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".npy", ".mp4", ".avi", ".mkv", ".mov", ".nii.gz")
_FEW_CLASSES = 8  # whose names fit into a line
_FORMAT = "a format that is not read"
_ELSEWHERE = "not where 'images' and 'masks' say"
_NO_SPLIT = "its video is in no split"


def stock_of(site: Site) -> Inventory:
    """Return the inventory of the folder of a site.yaml."""
    videos = {split: [part.video for part in site.split.get(split, ())] for split in SPLITS}
    if site.source.own is not None:
        return own_stock(site.root, site.source.own, videos, ignored=())
    return public_stock(site.root, site.source, videos, classes=site.classes)


def own_stock(
    root: Path,
    own: Own,
    split: Mapping[str, Sequence[Any]],
    *,
    ignored: Sequence[str],
    scanned: Scan | None = None,
    agreed: Collection[str] = (),
) -> Inventory:
    """Return the inventory of a hospital's own data.

    Args:
        split: videos, or parts of some, by split.
        ignored: values of masks that are named `ignore`.
        scanned: the data in the folder; None: listed here.
        agreed: `unlabelled` if images without a mask are left out as asked, `split` if the split was given, and kinds
            of files that were not asked for.
    """
    kinds = (scan(root) if scanned is None else scanned).kinds()
    chosen = set(_names(split))
    names = _without_links(root, own.images, chosen)
    chosen &= set(names)
    files = {video: _files(root, own, video) for video in names}
    films = _below(root, (placed(root, own.images, video) for video in names))
    kinds = {path: kind for path, kind in kinds.items() if path not in films}  # which are counted as videos
    used = {path for video in chosen for path in files[video][0]}
    reasons = {path: reason for video in names for path, reason in files[video][1].items()}
    reasons = dict.fromkeys((path for video in set(names) - chosen for path in files[video][0]), _NO_SPLIT) | reasons
    labels = {"unlabelled": _NO_MASK, "split": _NO_SPLIT}
    consented = {labels[one] for one in agreed if one in labels}
    left_out = [*left_out_files(
        kinds, used, lambda path: reasons.get(path) or _reason(path, kinds[path]),
        agreed=lambda path: reasons.get(path) in consented or (path not in reasons and kinds[path] in agreed),
    )]  # fmt: skip
    counts = {kind: sum(kinds.get(path) == kind for path in used) for kind in dict.fromkeys(kinds.values())}
    idle = [video for video in names if video not in chosen and files[video][0]]
    bare = [video for video in names if not files[video][0]]
    left_out += _videos(idle, "in no split", "split" in agreed) + _videos(bare, "without masks", False)
    classes = [name for name in own.classes if name != BACKGROUND]
    left_out += [LeftOut("classes", ignored, "named ignore", len(ignored), agreed=True)] * bool(ignored)
    return Inventory(
        {"videos": len(chosen) - len(set(bare) & chosen), **counts, "classes": len(classes), **_splits(split)},
        tuple(left_out),
        {"classes": ", ".join(classes), "splits": _split_text(split)},
    )


_NO_MASKS = "no masks of its video"
_NO_MASK = "no mask of the same name; clips may show them"


def _without_links(root: Path, template: str, chosen: Collection[str]) -> list[str]:
    """List the videos, without links to the folder of another video."""
    folder = template.rpartition("/")[0] if "*" in template else template
    names = sorted(video_names(root, template), key=lambda video: video not in chosen)
    if VIDEO not in folder:
        return names
    return list({placed(root, template, video).resolve(): video for video in reversed(names)}.values())[::-1]


def _videos(names: Sequence[str], why: str, agreed: bool) -> list[LeftOut]:
    return [LeftOut("videos", tuple(names), why, len(names), agreed=agreed)] if names else []


def _names(split: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the videos of a split; a part of a video is {video: bounds}."""
    return [name for listed in split.values() for one in listed for name in ([one] if isinstance(one, str) else one)]


def _splits(split: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    return {"splits": sum(bool(listed) for listed in split.values())}


def _split_text(split: Mapping[str, Sequence[Any]]) -> str:
    if len(set(_names(split))) == 1 < len(split):
        return "the video is cut by time"
    videos = {name: len(_names({name: listed})) for name, listed in split.items() if listed}
    return ", ".join(f"{name} {counted(count, 'video')}" for name, count in videos.items())


def _files(root: Path, own: Own, video: str) -> tuple[set[str], dict[str, str]]:
    """Return the files of a video that are used, and why others of it are not."""
    images = images_of(root, own.images, video, own.masks)
    if own.kind == "nifti":
        volume = placed(root, own.masks, video)
        files = {*images.files.values(), *([images.where] if images.is_video else [])}
        names = {path.relative_to(root).as_posix() for path in files}
        here = {volume.relative_to(root).as_posix()}
        return (names | here, {}) if volume.is_file() else (set(), dict.fromkeys(names, "no label volume of its name"))
    masks = _masks(root, own, video, images.files)
    if images.is_video:
        frames, numbers = images.by_number(own.first_frame), mask_numbers(masks, own, images.where)
        shown = {name for name in masks if numbers[name] in frames}
        used = {images.where} if shown else set()
        bare = {} if shown else {images.where: _NO_MASKS}
        odd = "the video has no frame of its number"
    else:
        shown = images.files.keys() & masks.keys()
        used = {images.files[name] for name in shown}
        bare = {path: _NO_MASK if masks else _NO_MASKS for name, path in images.files.items() if name not in masks}
        odd = "no image of the same name"
    used |= {path for name in shown for path in masks[name]}
    reasons = bare | {path: odd for name in masks if name not in shown for path in masks[name]}
    return _below(root, used), {path.relative_to(root).as_posix(): why for path, why in reasons.items()}


def _masks(root: Path, own: Own, video: str, images: Mapping[str, Path]) -> dict[str, tuple[Path, ...]]:
    if CLASS not in own.masks:
        return {name: (path,) for name, path in files_of(root, own.masks, video).items()}
    return class_files(root, own.masks, video, words=[word for word, _ in own.words], images=images)


def labelled_frames(root: Path, own: Own, video: str) -> int:
    """Return how many labelled frames a video has; 0 if they cannot be listed, which a check of the site reports."""
    lenient = own if own.kind == "nifti" else replace(own, partly_labelled=True)
    with suppress(DataError):
        return len(own_reader(lenient).frames(root, video))
    return 0


def _below(root: Path, paths: Iterable[Path]) -> set[str]:
    return {path.relative_to(root).as_posix() for path in paths}


def _reason(path: str, kind: str) -> str:
    return _FORMAT if kind == "unread files" else _ELSEWHERE


def public_stock(
    root: Path,
    source: Source,
    split: Mapping[str, Sequence[Any]],
    *,
    classes: Sequence[str] | None = None,
    given: bool = False,
) -> Inventory:
    """Return the inventory of a public data set; its files that no reader needs are left out as agreed.

    Args:
        classes: of the site; None: the usual classes of the data set.
        given: whether the split was asked for, so that videos in none are left out as agreed.
    """
    reader, chosen = source.reader, set(_names(split))
    used: dict[str, str] = {}
    homes: set[str] = set()
    for video in reader.videos(root):
        files = _public_files(root, reader, video)
        homes.add(_home(files, video.rpartition("/")[2]))
        used |= files if video in chosen else {}
    others = {path: "other files" for path in _data_files(root) if path not in used}
    left_out = left_out_files(
        others | used, used.keys(), lambda path: f"not read of {source.dataset}, or in no split",
        agreed=lambda path: given or any(path.startswith(home) for home in homes),
    )  # fmt: skip
    counts = {kind: list(used.values()).count(kind) for kind in dict.fromkeys(used.values())}
    idle = _videos([video for video in reader.videos(root) if video not in chosen], "in no split", given)
    names = [name for name in (source.usual_classes if classes is None else classes) if name != BACKGROUND]
    return Inventory(
        {"videos": len(chosen), **counts, **({"classes": len(names)} if names else {}), **_splits(split)},
        (*left_out, *idle),
        {"classes": ", ".join(names) if len(names) <= _FEW_CLASSES else "", "splits": _split_text(split)},
    )


def _public_files(root: Path, reader: Reader, video: str) -> dict[str, str]:
    """Return the files of a video by their path: images, or what its reader reads as targets."""
    found: dict[Path, str] = {}
    with suppress(DataError):
        listing = reader.frames(root, video)
        found = {_file(image): "images" for _, image, _ in listing}
        files = (path for _, _, targets in listing for paths in targets.values() for path in paths)
        found |= {_file(path): "label files" for path in files}
    there = [path for path in found if path.is_file() and path.is_relative_to(root)]
    return {path.relative_to(root).as_posix(): found[path] for path in there}


def _file(path: Path) -> Path:
    """Return the file that a frame is in, of a video or a table."""
    return path if not path.parent.is_file() else path.parent


def _home(files: Iterable[str], video: str) -> str:
    """Return the folder of a video's files, or a folder above with the video's name; with a slash, "" for the root."""
    parts = [path.split("/")[:-1] for path in files]
    common = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))]
    if video in common:
        common = common[: common.index(video) + 1]
    return "/".join(common) + "/" if common else ""


def _data_files(root: Path) -> list[str]:
    paths = [path / name for path, names in folders_below(root) for name in names]
    return [path.relative_to(root).as_posix() for path in paths if path.name.lower().endswith(_ENDINGS)]
