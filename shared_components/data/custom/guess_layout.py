"""Recognise the data in a folder: a public data set, or templates for the paths of images and masks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared_components.data.custom.description import KINDS, VIDEO, Kind
from shared_components.data.custom.frame_names import frame_span, in_frame_order
from shared_components.data.custom.layout import file_pattern, video_of
from shared_components.data.custom.scan import Scan, is_binary, joined, scan
from shared_components.data.custom.templates import Templates, class_template, sources_of, stem_templates, templates
from shared_components.data.files import DataError, natural_order
from shared_components.data.readers import find_reader, reader_names

_LISTED = 6  # files of each kind that the error message lists
_COMPARED = 100  # names of each group that are matched with templates
_TRIED = 60  # most frequent templates that are matched
_MEMBERS = 3  # masks of a class that are tested to be binary


@dataclass(frozen=True)
class FolderLayout:
    """Templates of the images and masks in a folder, see `description.Own`.

    Attributes:
        videos: Names of the videos that have images and masks.
        words: Words that replace {class} in the template of the masks.
    """

    kind: Kind
    images: str
    masks: str
    videos: tuple[str, ...]
    words: tuple[str, ...] = ()


def guess_layout(folder: Path, kind: Kind | None = None, *, files: Scan | None = None) -> FolderLayout:
    """Find templates for frames and masks, videos and numbered masks, or images and label volumes.

    Args:
        kind: Kind of masks to look for; None: both.
        files: The data in the folder; None: list it.

    Raises:
        DataError: No templates match; the sentence lists the data in the folder.
    """
    files = scan(folder) if files is None else files
    images = dict.fromkeys(files.videos, frozenset[str]()) | sources_of(files.frames, files.masks)
    volumes = dict.fromkeys(files.volumes, frozenset[str]())
    if kind != "frames" and (layout := _best_layout(files, "nifti", templates(images, volumes), {})):
        return layout
    masks = sources_of(files.masks, files.frames)
    if kind != "nifti" and (layout := _best_layout(files, "frames", templates(images, masks), stem_templates(files))):
        return layout
    blurred = any(re.search(r"mask|label|seg|annot|truth", name, re.IGNORECASE) for name in joined(files.frames))
    hint = "export masks without loss, since JPEG and smoothing make photographs of them; else " if blurred else ""
    raise DataError(
        folder,
        "was searched for frames and masks of equal names, videos and masks numbered as their frames, and NIfTI label "
        f"volumes called as their video, and holds {_contents(files)}",
        f"{hint}name the folder above them, make their names agree, or give their templates with --images and --masks, "
        f"such as --images '{VIDEO}/frames' --masks '{VIDEO}/labels'",
    )


def _best_layout(
    files: Scan, kind: Kind, pairs: Iterable[Templates], by_stem: Mapping[str, Counter[str]]
) -> FolderLayout | None:
    """Return the templates that pair most masks with an image; among equals, with most videos."""
    by_number = Counter(pairs)  # templates occur once per folder
    frequency = by_number + Counter({(i, m): n for i, masks in by_stem.items() for m, n in masks.items()})
    candidates: dict[Templates, tuple[str, ...]] = {pair: () for pair, _ in frequency.most_common(_TRIED)}
    for image, masks in by_stem.items():
        if family := class_template(mask for mask in masks if _is_class(files, mask)):
            candidates[image, family[0]] = family[1]
    images = [*files.videos, *_first_names(files.frames)]
    labels = files.volumes if kind == "nifti" else _first_names(files.masks)
    best: tuple[tuple[int, ...], FolderLayout] | None = None
    for image, mask in sorted(candidates, key=lambda pair: VIDEO not in pair[0]):
        if best is not None and best[0][0] == len(labels) and best[0][1] > 1 and VIDEO not in image:
            break  # all masks have an image in one of several videos
        words = candidates[image, mask]
        counted = _count_pairs(images, labels, file_pattern(image), file_pattern(mask, words))
        rank = *_rank(counted, image), (image, mask) in by_number, -len(image) - len(mask)
        if counted and (best is None or rank > best[0]):
            videos = sorted((video for video in counted if video), key=natural_order)
            best = rank, FolderLayout(kind, image, mask, tuple(videos), words)
    return None if best is None else best[1]


def _rank(counted: Mapping[str, int], image: str) -> tuple[int, ...]:
    """Rank templates by their pairs; ignore videos of a single frame if file names contain the video."""
    single = VIDEO in image.rpartition("/")[2] and "*" in image
    masks = sum(count for count in counted.values() if not single or count > 1)
    return masks, len(counted), -sum(map(len, counted))


def _first_names(folders: Mapping[str, Sequence[str]]) -> list[str]:
    """Return paths of files; if many differ only in the frame, the first of them."""
    alike: dict[str, list[str]] = defaultdict(list)
    for folder, names in folders.items():
        for name in in_frame_order(names):
            start, end = frame_span(name)
            alike[f"{folder}/{name[:start]}*{name[end:]}"].append(f"{folder}/{name}".lstrip("/"))
    return [path for paths in alike.values() for path in paths[:_COMPARED]]


def _count_pairs(
    images: Sequence[str], masks: Sequence[str], image: re.Pattern[str], mask: re.Pattern[str]
) -> dict[str, int]:
    """Count the masks that have an image, by video."""
    frames = {(video_of(m), m.groupdict().get("frame")) for name in images if (m := image.fullmatch(name))}
    whole = {video for video, frame in frames if frame is None}  # video files
    counted: Counter[str] = Counter()
    for match in filter(None, map(mask.fullmatch, masks)):
        video, frame = video_of(match), match.groupdict().get("frame")
        if video in whole or (video, frame) in frames or (frame is None and any(v == video for v, _ in frames)):
            counted[video] += 1
    return counted


def _is_class(files: Scan, mask: str) -> bool:
    """Return whether the first masks of a template are binary."""
    pattern = file_pattern(mask)
    paths = [path for path in joined(files.masks) if pattern.fullmatch(path)][:_MEMBERS]
    return bool(paths) and all(is_binary(files.root / path) for path in paths)


def class_words(files: Scan, images: str, masks: str) -> tuple[str, ...]:
    """Return the words that replace {class} in the names of masks with an image."""
    image, mask = file_pattern(images), file_pattern(masks)
    frames = {m["frame"] for path in joined(files.frames) if (m := image.fullmatch(path))}
    words: set[str] = set()
    for path in filter(mask.fullmatch, joined(files.masks)):
        frame = max((frame for frame in frames if frame in path), key=len, default="")
        if frame and (match := file_pattern(masks, frame=frame).fullmatch(path)):
            words.add(match["class"])
    return tuple(sorted(words))


def _contents(files: Scan) -> str:
    parts = {
        "folders of images": [folder or "." for folder in files.frames],
        "folders of masks": [folder or "." for folder in files.masks],
        "videos": files.videos,
        "NIfTI volumes": files.volumes,
        "files of formats that are not read": files.unread,
    }
    listed = [
        f"{len(names)} {kind} ({', '.join(names[:_LISTED])}{', ...' if len(names) > _LISTED else ''})"
        for kind, names in parts.items()
        if names
    ]
    return ", ".join(listed) or "no images, videos or volumes"


def known_layout(root: Path, dataset: str | None = None) -> str | None:
    """Return the public data set in a folder; None for other data.

    Args:
        dataset: Look only for this data set.

    Raises:
        DataError: `dataset` is not in the folder.
    """
    if dataset in KINDS:
        return None
    if dataset is not None:
        _read_first_frame(root, dataset)
        return dataset
    for name in reader_names():
        if not find_reader(name).TARGETS:  # names of images may match by chance
            continue
        try:
            _read_first_frame(root, name)
        except DataError:
            continue
        return name
    return None


def _read_first_frame(root: Path, dataset: str) -> None:
    """Read the first labelled frame, since names of folders may match by chance; DataError if there is none."""
    reader = find_reader(dataset)
    videos = reader.videos(root)
    listing = reader.frames(root, videos[0]) if videos else []
    if not listing:
        raise DataError(root, f"holds no videos of {dataset}", "correct the folder")
    _, image, targets = listing[0]
    reader.read_image(image)
    for name, files in targets.items():
        reader.read_target(name, files)
