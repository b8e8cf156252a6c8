"""Recognise the data in a folder: a public data set, or templates of where images and masks of one's own lie."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shared_components.data.custom.description import KINDS, VIDEO, Kind
from shared_components.data.files import (
    IMAGES,
    VIDEOS,
    VOLUMES,
    DataError,
    SeveralPictures,
    decode,
    folders_below,
    natural_order,
)
from shared_components.data.nifti import holds_colours
from shared_components.data.readers import find_reader, reader_names

_DEEPEST = 5  # folders below the one that is looked at
_SAMPLED = 3  # images of a folder that tell whether they are masks
_FEW = 64  # a mask's values or colours; a photograph has thousands
_TRIED = 12  # image folders whose names may be a video's
_NAMED = 6  # of each sort of file that the sentence lists
_LOSSLESS = "export masks without loss, since JPEG and smoothing make photographs of them; else "


@dataclass(frozen=True)
class Found:
    """What a folder holds.

    Attributes:
        images, masks: templates, see `description.Own`.
        videos: names of the videos that have both.
    """

    kind: Kind
    images: str
    masks: str
    videos: tuple[str, ...]


@dataclass
class _Files:
    """The paths below a folder, as text: of folders of images, or of groups in one (`a/*_mask.png`), and of files."""

    frames: dict[str, frozenset[str]] = field(default_factory=dict)  # with the names of their frames
    masks: dict[str, frozenset[str]] = field(default_factory=dict)
    videos: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)


def look_at(folder: Path, kind: Kind | None = None) -> Found:
    """Recognise frames and masks, videos and numbered masks, or either of them with label volumes.

    Args:
        kind: look for this alone.

    Raises:
        DataError: it is none of these: what was looked for, and what is there.
    """
    files = _list_files(folder)
    images = {**{name: frozenset[str]() for name in files.videos}, **files.frames}
    tries: list[tuple[Kind, dict[str, frozenset[str]]]] = [
        ("nifti", {name: frozenset() for name in files.volumes}),
        ("frames", files.masks),
    ]
    for one, masks in tries:
        if kind in (None, one) and (found := _pair(images, masks, one)):
            return found
    raise DataError(
        folder,
        "was searched for frames and masks of equal names, videos and masks numbered as their frames, and NIfTI label "
        f"volumes called as their video, and holds {_said(files)}",
        f"{_LOSSLESS if _has_blurred_masks(files) else ''}name the folder above them, make their names agree, or say "
        "with --images and --masks where they lie, such as "
        f"--images '{VIDEO}/frames' --masks '{VIDEO}/labels'",
    )


def _list_files(folder: Path) -> _Files:
    if not folder.is_dir():
        raise DataError(folder, "is not a folder", "name the folder that holds the images and masks")
    files = _Files()
    for path, names in folders_below(folder, _DEEPEST):
        below = "" if path == folder else path.relative_to(folder).as_posix() + "/"
        files.videos += [below + name for name in names if name.lower().endswith(VIDEOS)]
        for name in names:
            if name.lower().endswith(VOLUMES):  # of frames in colour, or of labels
                (files.videos if holds_colours(path / name) else files.volumes).append(below + name)
        _add_images(files, path, below, [name for name in names if name.lower().endswith(IMAGES)])
    return files


def _add_images(files: _Files, path: Path, below: str, names: Sequence[str]) -> None:
    """Sort a folder's images into frames and masks: all of it, and each group of names that are alike."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_pattern(name)].append(name)
    kinds = {pattern: _are_masks(path, group) for pattern, group in groups.items()}
    for pattern, group in groups.items():
        stems = frozenset(_number(name) for name in group)
        (files.masks if kinds[pattern] else files.frames)[below + pattern] = stems
    if len(set(kinds.values())) == 1 and below:
        listed = files.masks if any(kinds.values()) else files.frames
        listed[below.removesuffix("/")] = frozenset(Path(name).stem for name in names)


def _pattern(name: str) -> str:
    """Return what is alike in the names of a video's frames: frame_0012_mask.png -> frame_*_mask.png."""
    stem, ending = os.path.splitext(name)
    found = list(re.finditer(r"\d+", stem))
    return f"*{ending}" if not found else f"{stem[: found[-1].start()]}*{stem[found[-1].end() :]}{ending}"


def _number(name: str) -> str:
    found = re.findall(r"\d+", Path(name).stem)
    return found[-1] if found else Path(name).stem


def _are_masks(path: Path, names: Sequence[str]) -> bool:
    """Say whether images are masks: they have few values or colours, as a photograph never has."""
    chosen = [names[len(names) * (2 * k + 1) // (2 * _SAMPLED)] for k in range(_SAMPLED)]
    return all(_is_mask(path / name) for name in dict.fromkeys(chosen))


def _is_mask(path: Path) -> bool:
    try:
        data, image = decode(path)
    except SeveralPictures:  # such a file has to be taken apart before anybody can tell
        raise
    except DataError:
        return False
    if data.startswith(b"\xff\xd8\xff"):
        return False
    pixels = image.reshape(-1, image.shape[2] if image.ndim == 3 else 1)
    return len(np.unique(pixels[:: max(1, len(pixels) // 20_000)], axis=0)) <= _FEW


def _pair(images: Mapping[str, frozenset[str]], masks: Mapping[str, frozenset[str]], kind: Kind) -> Found | None:
    """Return the templates that most videos have images and masks by; of equals, the shorter."""
    best: tuple[int, int, Found] | None = None
    for image_template, mask_template in dict.fromkeys(_templates(images, masks)):
        videos = _videos(images, masks, image_template, mask_template)
        rank = (len(videos), -len(image_template) - len(mask_template))
        if videos and (best is None or rank > best[:2]):
            named = sorted((video for video in videos if video), key=natural_order)
            best = (*rank, Found(kind, image_template, mask_template, tuple(named)))
    if best is None and len(images) == len(masks) == 1:
        (image,), (mask,) = images, masks
        if _fit(images[image], masks[mask]) and "/" in image:
            return Found(kind, image, mask, ())
    return None if best is None else best[2]


def _templates(images: Mapping[str, frozenset[str]], masks: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    """Yield templates by what the path of an image and that of a mask have in common."""
    for image in sorted(images, key=lambda name: (len(name.split("/")), natural_order(name)))[:_TRIED]:
        for mask in masks:
            for video in _common(image, mask):
                yield _with_video(image, video), _with_video(mask, video)
            if _fit(images[image], masks[mask]) and "/" in image and VIDEO not in image:
                yield image, mask


def _common(image: str, mask: str) -> Iterator[str]:
    """Yield what could be a video's name: parts of both paths, whole or up to a separator."""
    words = [{w for part in path.split("/") for w in _words(part)} for path in (image, mask)]
    yield from sorted(words[0] & words[1], key=lambda word: (-len(word), word))


def _words(part: str) -> Iterator[str]:
    """Yield a part of a path without its ending, and what stands before each separator in it."""
    stem = re.sub(r"\.(nii\.gz|[A-Za-z0-9]{2,4})$", "", part)
    for end in [*(found.start() for found in re.finditer(r"[_\-. *]", stem)), len(stem)]:
        word = stem[:end]
        if word and word[-1] not in "_-. *" and "*" not in word and word.lower() not in _USUAL:
            yield word


_USUAL = {
    "images", "image", "imgs", "img", "frames", "frame", "masks", "mask", "labels", "label", "raw", "data", "video",
    "videos", "seg", "annotations", "rgb", "left", "right",
}  # fmt: skip
"""Names of folders that no video has for its own."""


def _with_video(path: str, video: str) -> str:
    """Put {video} in the place of a video's name at the beginning of parts of a path."""
    return re.sub(rf"(?<![^/]){re.escape(video)}(?![A-Za-z0-9])", VIDEO, path)


def _videos(
    images: Mapping[str, frozenset[str]], masks: Mapping[str, frozenset[str]], image_template: str, mask_template: str
) -> list[str]:
    """List the videos that have images by the one template and masks by the other; "" for one without a name."""
    if VIDEO not in image_template:
        return [""] if VIDEO not in mask_template else []
    first, *rest = [re.escape(part) for part in image_template.split(VIDEO)]
    pattern = re.compile(first + "(?P<video>[^/]+?)" + "(?P=video)".join(rest))
    found = []
    for image in images:
        if (match := pattern.fullmatch(image)) and VIDEO in mask_template:
            mask = mask_template.replace(VIDEO, match["video"])
            if mask in masks and _fit(images[image], masks[mask]):
                found.append(match["video"])
    return found


def _fit(images: frozenset[str], masks: frozenset[str]) -> bool:
    """Say whether most masks have an image of their name; of video files and volumes nothing is known here."""
    return not images or not masks or 2 * len(images & masks) >= len(masks)


def _has_blurred_masks(files: _Files) -> bool:
    return any(re.search(r"mask|label|seg|annot|truth", name, re.IGNORECASE) for name in files.frames)


def _said(files: _Files) -> str:
    parts = [
        ("folders of images", [name for name in files.frames if "*" not in name] or list(files.frames)),
        ("folders of masks", [name for name in files.masks if "*" not in name] or list(files.masks)),
        ("videos", files.videos),
        ("NIfTI volumes", files.volumes),
    ]
    said = [f"{len(names)} {what} ({_some(names)})" for what, names in parts if names]
    return ", ".join(said) or "no images, videos or volumes"


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
