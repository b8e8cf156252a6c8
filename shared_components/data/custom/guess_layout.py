"""Recognise the data in a folder: a public data set, or templates for the paths of images and masks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared_components.data.custom.description import KINDS, VIDEO, Kind
from shared_components.data.custom.layout import file_pattern, in_frame_order, video_of
from shared_components.data.custom.scan import Scan, frame_span, is_binary, joined, scan
from shared_components.data.custom.templates import Templates, class_template, sources_of, stem_templates, templates
from shared_components.data.files import DataError, natural_order
from shared_components.data.readers import find_reader, reader_names

_NAMED = 6  # of each sort of file that the sentence lists
_COMPARED = 100  # names that differ only in a number and show how many frames two templates pair
_TRIED = 60  # templates that come up most often
_MEMBERS = 3  # masks of a class that tell whether they are binary
_LOSSLESS = "export masks without loss, since JPEG and smoothing make photographs of them; else "


@dataclass(frozen=True)
class FolderLayout:
    """Templates of the images and masks in a folder.

    Attributes:
        images, masks: templates, see `description.Own`.
        videos: names of the videos that have both.
        words: words that replace {class} in the template of the masks; none if it has no {class}.
    """

    kind: Kind
    images: str
    masks: str
    videos: tuple[str, ...]
    words: tuple[str, ...] = ()


def guess_layout(folder: Path, kind: Kind | None = None, *, files: Scan | None = None) -> FolderLayout:
    """Recognise frames and masks, videos and numbered masks, or either of them with label volumes.

    Args:
        kind: look for this alone.
        files: the data in the folder; None: listed here.

    Raises:
        DataError: it is none of these: what was looked for, and what is there.
    """
    files = scan(folder) if files is None else files
    films: dict[str, frozenset[str]] = {name: frozenset() for name in files.videos}
    images = {**films, **sources_of(files.frames, files.masks)}
    if kind != "frames" and (paired := _pair(files, "nifti", templates(images, dict.fromkeys(files.volumes, _NONE)))):
        return paired
    masks = sources_of(files.masks, files.frames)
    if kind != "nifti" and (paired := _pair(files, "frames", templates(images, masks), stem_templates(files))):
        return paired
    raise DataError(
        folder,
        "was searched for frames and masks of equal names, videos and masks numbered as their frames, and NIfTI label "
        f"volumes called as their video, and holds {_contents(files)}",
        f"{_LOSSLESS if _has_blurred_masks(files) else ''}name the folder above them, make their names agree, or say "
        "with --images and --masks where they lie, such as "
        f"--images '{VIDEO}/frames' --masks '{VIDEO}/labels'",
    )


_NONE: frozenset[str] = frozenset()


def _pair(
    files: Scan, kind: Kind, pairs: Iterable[Templates], by_stem: Mapping[str, Counter[str]] | None = None
) -> FolderLayout | None:
    """Return the templates that pair most masks with an image; among equals, with most videos."""
    by_number = Counter(pairs)  # templates of many folders come up for each of them
    often = by_number + Counter({(i, m): n for i, masks in (by_stem or {}).items() for m, n in masks.items()})
    candidates: dict[Templates, tuple[str, ...]] = {pair: () for pair, _ in often.most_common(_TRIED)}
    for image, masks in (by_stem or {}).items():
        if family := class_template(mask for mask in masks if _is_class(files, mask)):
            candidates[image, family[0]] = family[1]
    names = _compared(files, kind)
    best: tuple[tuple[int, ...], FolderLayout] | None = None
    for image, mask in sorted(candidates, key=lambda pair: VIDEO not in pair[0]):
        if best is not None and best[0][0] == len(names[1]) and best[0][1] > 1 and VIDEO not in image:
            break  # all masks have an image of one of several videos
        words = candidates[image, mask]
        counted = _frames(names, image, mask, words)
        rank = *_rank(counted, image), (image, mask) in by_number, -len(image) - len(mask)
        if counted and (best is None or rank > best[0]):
            videos = sorted((video for video in counted if video), key=natural_order)
            best = rank, FolderLayout(kind, image, mask, tuple(videos), words)
    return None if best is None else best[1]


def _rank(counted: Mapping[str, int], image: str) -> tuple[int, ...]:
    """Rank templates by their masks with an image; videos of a single frame, found by file names, count nothing."""
    single = VIDEO in image.rpartition("/")[2] and "*" in image
    masks = sum(count for count in counted.values() if not single or count > 1)
    return masks, len(counted), -sum(map(len, counted))


def _compared(files: Scan, kind: Kind) -> tuple[list[str], list[str]]:
    """Return paths of images and of masks or volumes; of many that differ only in a number, the first ones."""

    def first(folders: Mapping[str, Sequence[str]]) -> list[str]:
        alike: dict[str, list[str]] = defaultdict(list)
        for folder, names in folders.items():
            for name in in_frame_order(names):
                start, end = frame_span(name)
                alike[f"{folder}/{name[:start]}*{name[end:]}"].append(f"{folder}/{name}".lstrip("/"))
        return [path for paths in alike.values() for path in paths[:_COMPARED]]

    return [*files.videos, *first(files.frames)], files.volumes if kind == "nifti" else first(files.masks)


def _frames(names: tuple[list[str], list[str]], image: str, mask: str, words: Sequence[str]) -> dict[str, int]:
    """Count the masks that have an image, by video."""
    here, there = file_pattern(image), file_pattern(mask, words)
    images = {(video_of(m), m.groupdict().get("frame")) for name in names[0] if (m := here.fullmatch(name))}
    films = {video for video, frame in images if frame is None}
    counted: Counter[str] = Counter()
    for match in filter(None, map(there.fullmatch, names[1])):
        video, frame = video_of(match), match.groupdict().get("frame")
        if video in films or (video, frame) in images or (frame is None and any(v == video for v, _ in images)):
            counted[video] += 1
    return counted


def _is_class(files: Scan, mask: str) -> bool:
    """Return whether the masks of a template are binary, by a few of them."""
    pattern = file_pattern(mask)
    named = [path for path in joined(files.masks) if pattern.fullmatch(path)][:_MEMBERS]
    return bool(named) and all(is_binary(files.root / path) for path in named)


def class_words(files: Scan, images: str, masks: str) -> tuple[str, ...]:
    """Return the words that replace {class} in the names of masks with an image."""
    here, there = file_pattern(images), file_pattern(masks)
    frames = {m["frame"] for path in joined(files.frames) if (m := here.fullmatch(path))}
    found: set[str] = set()
    for path in joined(files.masks):
        frame = max((frame for frame in frames if frame in path), key=len, default="")
        match = file_pattern(masks, frame=frame).fullmatch(path) if frame and there.fullmatch(path) else None
        found |= {match["class"]} if match else set()
    return tuple(sorted(found))


def _has_blurred_masks(files: Scan) -> bool:
    return any(re.search(r"mask|label|seg|annot|truth", name, re.IGNORECASE) for name in joined(files.frames))


def _contents(files: Scan) -> str:
    parts = [
        ("folders of images", [folder or "." for folder in files.frames]),
        ("folders of masks", [folder or "." for folder in files.masks]),
        ("videos", files.videos),
        ("NIfTI volumes", files.volumes),
        ("files of formats that are not read", files.unread),
    ]
    listed = [f"{len(names)} {what} ({_some(names)})" for what, names in parts if names]
    return ", ".join(listed) or "no images, videos or volumes"


def _some(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def known_layout(root: Path, dataset: str | None = None) -> str | None:
    """Return the dataset that a folder holds; None where it is of no layout that is known.

    Args:
        dataset: look for this one alone; one of a site's own is never a known one.

    Raises:
        DataError: it was asked for and is not there.
    """
    if dataset in KINDS:
        return None
    if dataset is not None:
        _look(root, dataset)
        return dataset
    for name in reader_names():
        if not find_reader(name).TARGETS:  # images alone may be called so by chance
            continue
        try:
            _look(root, name)
        except DataError:
            continue
        return name
    return None


def _look(root: Path, dataset: str) -> None:
    """Read the first labelled frame of the first video: folders alone may be called alike by chance."""
    reader = find_reader(dataset)
    videos = reader.videos(root)
    listing = reader.frames(root, videos[0]) if videos else []
    if not listing:
        raise DataError(root, f"holds no videos of {dataset}", "correct the folder")
    _, image, targets = listing[0]
    reader.read_image(image)
    for name, files in targets.items():
        reader.read_target(name, files)
