"""Take the inventory of a site's own data or public data set."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from shared_components.common.counted import counted
from shared_components.data.custom.description import VIDEO, Own
from shared_components.data.custom.ids import BACKGROUND
from shared_components.data.custom.layout import images_of, placed, video_names
from shared_components.data.custom.list_files import INSTANCES, Scan, scan
from shared_components.data.custom.readers import mask_numbers, own_masks, own_reader
from shared_components.data.files.images import DataError, folders_below
from shared_components.data.files.inventory import Inventory, LeftOut, left_out_files
from shared_components.data.readers import Reader
from shared_components.data.site import SPLITS, Site, Source

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".npy", ".mp4", ".avi", ".mkv", ".mov", ".nii.gz")
_FEW_CLASSES = 8  # maximum number of classes that the inventory lists
_NO_MASK = "no mask of the same name; clips may show them"
_NO_SPLIT = "its video is in no split"
Split = Mapping[str, Sequence[Any]]
"""Videos, or {video: bounds} for parts of videos, by split."""


def stock_of(site: Site) -> Inventory:
    videos = {split: [part.video for part in site.split.get(split, ())] for split in SPLITS}
    if site.source.own is not None:
        return own_stock(site.root, site.source.own, videos, ignored=(), agreed=())
    return public_stock(site.root, site.source, videos, classes=site.classes)


def own_stock(
    root: Path, own: Own, split: Split, *, ignored: Sequence[str], scanned: Scan | None = None, agreed: Collection[str]
) -> Inventory:
    """Return the inventory of a hospital's own data.

    `split` has videos, or {video: bounds} for parts of videos; `ignored` are the mask values named `ignore`; without
    `scanned`, list the folder. `agreed` is what the user has agreed to leave out: `unlabelled` images without a mask,
    `split` for videos in no split, and kinds of files.
    """
    kinds = (scan(root) if scanned is None else scanned).kinds()
    names = _without_links(root, own.images, _videos(split))
    chosen = _videos(split) & set(names)
    files = {video: _files(root, own, video) for video in names}
    videos = _below(root, (placed(root, own.images, video) for video in names))
    kinds = {path: kind for path, kind in kinds.items() if path not in videos}  # the inventory counts these as videos
    used = {path for video in chosen for path in files[video][0]}
    reasons = dict.fromkeys((path for video in names if video not in chosen for path in files[video][0]), _NO_SPLIT)
    reasons |= {path: reason for video in names for path, reason in files[video][1].items()}
    labels = {"unlabelled": _NO_MASK, "split": _NO_SPLIT}
    accepted = {labels[key] for key in agreed if key in labels}

    def reason(path: str) -> str:
        others = {"unread files": "a format that is not read", INSTANCES: "the masks of classes have their pixels"}
        return reasons.get(path, others.get(kinds[path], "not where 'images' and 'masks' say"))

    def is_agreed(path: str) -> bool:
        return reasons[path] in accepted if path in reasons else kinds[path] in (*agreed, INSTANCES)

    left_out = list(left_out_files(kinds, used, reason, agreed=is_agreed))
    counts = {kind: sum(kinds.get(path) == kind for path in used) for kind in dict.fromkeys(kinds.values())}
    unused = [video for video in names if video not in chosen and files[video][0]]
    bare = [video for video in names if not files[video][0]]
    left_out += _left_out_videos(unused, "in no split", "split" in agreed)
    left_out += _left_out_videos(bare, "without masks", False)
    if ignored:
        left_out.append(LeftOut("classes", ignored, "named ignore", len(ignored), agreed=True))
    classes = [name for name in own.classes if name != BACKGROUND]
    return Inventory(
        {"videos": len(chosen - set(bare)), **counts, "classes": len(classes), **_count_splits(split)},
        tuple(left_out),
        {"classes": ", ".join(classes), "splits": _split_text(split)},
    )


def _without_links(root: Path, template: str, chosen: Collection[str]) -> list[str]:
    """List the videos, without links to the folder of another video."""
    folder = template.rpartition("/")[0] if "*" in template else template
    names = sorted(video_names(root, template), key=lambda video: video not in chosen)
    if VIDEO not in folder:
        return names
    return list({placed(root, template, video).resolve(): video for video in reversed(names)}.values())[::-1]


def _left_out_videos(names: Sequence[str], why: str, agreed: bool) -> list[LeftOut]:
    return [LeftOut("videos", tuple(names), why, len(names), agreed=agreed)] if names else []


def _videos(split: Split) -> set[str]:
    return {name for parts in split.values() for part in parts for name in ([part] if isinstance(part, str) else part)}


def _count_splits(split: Split) -> dict[str, int]:
    return {"splits": sum(bool(parts) for parts in split.values())}


def _split_text(split: Split) -> str:
    if len(_videos(split)) == 1 < len(split):
        return "the video is cut by time"
    return ", ".join(f"{name} {counted(len(parts), 'video')}" for name, parts in split.items() if parts)


def _files(root: Path, own: Own, video: str) -> tuple[set[str], dict[str, str]]:
    """Return the files of a video that are used, and the reasons why others are not."""
    images = images_of(root, own.images, video, own.masks)
    if own.kind == "nifti":
        volume = placed(root, own.masks, video)
        names = _below(root, [images.path] if images.is_video else images.files.values())
        if volume.is_file():
            return names | _below(root, [volume]), {}
        return set(), dict.fromkeys(names, "no label volume of its name")
    masks = own_masks(root, own, video, images.files)
    no_masks = "no masks of its video"
    if images.is_video:
        frames, numbers = images.by_number(own.first_frame), mask_numbers(masks, own, images.path)
        paired = {name for name in masks if numbers[name] in frames}
        used = {images.path} if paired else set()
        reasons = {} if paired else {images.path: no_masks}
        unpaired = "the video has no frame of its number"
    else:
        paired = images.files.keys() & masks.keys()
        used = {images.files[name] for name in paired}
        bare = [path for name, path in images.files.items() if name not in masks]
        reasons = dict.fromkeys(bare, _NO_MASK if masks else no_masks)
        unpaired = "no image of the same name"
    used |= {path for name in paired for path in masks[name]}
    reasons |= {path: unpaired for name in masks if name not in paired for path in masks[name]}
    return _below(root, used), {path.relative_to(root).as_posix(): why for path, why in reasons.items()}


def labelled_frames(root: Path, own: Own, video: str) -> int:
    """Return a video's number of labelled frames; 0 if they cannot be listed, which a check of the site reports."""
    lenient = own if own.kind == "nifti" else replace(own, partly_labelled=True)
    with suppress(DataError):
        return len(own_reader(lenient).frames(root, video))
    return 0


def _below(root: Path, paths: Iterable[Path]) -> set[str]:
    return {path.relative_to(root).as_posix() for path in paths}


def public_stock(
    root: Path, source: Source, split: Split, *, classes: Sequence[str] | None = None, given: bool = False
) -> Inventory:
    """Return the inventory of a public data set; files that its reader does not need count as agreed.

    Without `classes`, the site has the usual classes of the data set. If the user gave the split, videos in no split
    count as agreed.
    """
    reader, chosen = source.reader, _videos(split)
    videos = reader.videos(root)
    used: dict[str, str] = {}
    homes: set[str] = set()
    for video in videos:
        files = _public_files(root, reader, video)
        homes.add(_home(files, video.rpartition("/")[2]))
        used |= files if video in chosen else {}
    data = [(path / name).relative_to(root).as_posix() for path, names in folders_below(root) for name in names]
    others = {path: "other files" for path in data if path.lower().endswith(_ENDINGS) and path not in used}
    left_out = left_out_files(
        others | used, used.keys(), lambda path: f"not read of {source.dataset}, or in no split",
        agreed=lambda path: given or any(path.startswith(home) for home in homes),
    )  # fmt: skip
    counts = {kind: list(used.values()).count(kind) for kind in dict.fromkeys(used.values())}
    unused = _left_out_videos([video for video in videos if video not in chosen], "in no split", given)
    names = [name for name in (source.usual_classes if classes is None else classes) if name != BACKGROUND]
    return Inventory(
        {"videos": len(chosen), **counts, **({"classes": len(names)} if names else {}), **_count_splits(split)},
        (*left_out, *unused),
        {"classes": ", ".join(names) if len(names) <= _FEW_CLASSES else "", "splits": _split_text(split)},
    )


def _public_files(root: Path, reader: Reader, video: str) -> dict[str, str]:
    """Return the kind of each file that a public reader uses for a video, by path."""
    kinds: dict[Path, str] = {}
    with suppress(DataError):
        listing = reader.frames(root, video)
        kinds = {_file(image): "images" for _, image, _ in listing}
        labels = (path for _, _, targets in listing for paths in targets.values() for path in paths)
        kinds |= {_file(path): "label files" for path in labels}
    paths = [path for path in kinds if path.is_file() and path.is_relative_to(root)]
    return {path.relative_to(root).as_posix(): kinds[path] for path in paths}


def _file(path: Path) -> Path:
    """Return the file of a frame's address: a video, a table or an image."""
    return path.parent if path.parent.is_file() else path


def _home(files: Iterable[str], video: str) -> str:
    """Return the common folder of a video's files, or the folder above it with the video's name; "" for the root."""
    parts = [path.split("/")[:-1] for path in files]
    common = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))]
    if video in common:
        common = common[: common.index(video) + 1]
    return "/".join(common) + "/" if common else ""
