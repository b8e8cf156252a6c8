"""Propose templates for the paths of images and masks from the words that both paths share."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shared_components.data.custom.description import CLASS, GROUP, VIDEO
from shared_components.data.custom.scan import Scan, frame_span, joined
from shared_components.data.files import natural_order

Templates = tuple[str, str]
"""A template for images, and a template for masks."""
_TRIED = 12  # image folders whose names may be a video's
_MOST_PAIRS = 200  # of folders without a video's name
_LOOKED_AT = 2_000  # masks that are compared with the names of images
_SEPARATORS = r"[_\-. ]"
_USUAL = {
    "images", "image", "imgs", "img", "frames", "frame", "masks", "mask", "labels", "label", "raw", "data", "video",
    "videos", "seg", "annotations", "rgb", "left", "right", "gt", "groundtruth", "ground", "truth", "segmentation",
}  # fmt: skip
"""Names of folders that no video has for its own."""

Sources = Mapping[str, frozenset[str]]
"""Folders of files, groups of files in one (`a/*_mask.png`), or single files; with the names of their frames."""


def sources_of(folders: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Return the sources of images, given the masks as ``others``, or the sources of masks, given the images."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder, names in folders.items():
        below = f"{folder}/" if folder else ""
        for name in names:
            stem, ending = os.path.splitext(name)
            start, end = frame_span(stem)
            found[f"{below}{stem[:start]}*{stem[end:]}{ending}"].add(stem[start:end])
        if folder not in others and folder:
            found[folder] = {os.path.splitext(name)[0] for name in names}
    return {source: frozenset(frames) for source, frames in found.items()}


def templates(images: Sources, masks: Sources) -> Iterator[Templates]:
    """Yield templates by the words that the paths of an image and of a mask share."""
    raw = 0
    for image in sorted(images, key=lambda name: (len(name.split("/")), natural_order(name)))[:_TRIED]:
        for mask in masks:
            yield from with_video(image, mask)
            if raw < _MOST_PAIRS and (not images[image] or not masks[mask] or images[image] & masks[mask]):
                raw += 1
                yield image, mask


def with_video(image: str, mask: str) -> Iterator[Templates]:
    """Yield two paths with {video} for a possible video name, and with {group} for folders above."""
    for video in _common(image, mask):
        pair = _put(image, video, VIDEO), _put(mask, video, VIDEO)
        yield pair
        for group in _common_folders(*pair):
            yield _put(pair[0], group, GROUP), _put(pair[1], group, GROUP)


def _common(image: str, mask: str) -> Iterator[str]:
    """Yield possible video names: parts of both paths, whole or up to a separator."""
    words = [{w for part in path.split("/") for w in _words(part)} for path in (image, mask)]
    yield from sorted(words[0] & words[1], key=lambda word: (-len(word), word))


def _words(part: str) -> Iterator[str]:
    """Yield a part of a path without its ending, and what stands before each separator in it."""
    stem = re.sub(r"\.(nii\.gz|[A-Za-z0-9]{2,4})$", "", part)
    for end in [*(found.start() for found in re.finditer(r"[_\-. *]", stem)), len(stem)]:
        word = stem[:end]
        if word and word[-1] not in "_-. *" and "*" not in word and word.lower() not in _USUAL:
            yield word


def _common_folders(image: str, mask: str) -> Iterator[str]:
    """Yield the folders, or several in a row, that lie above the video in both paths."""
    above = [path[: path.index(VIDEO)].split("/")[:-1] for path in (image, mask)]
    runs = [
        {"/".join(parts[start:stop]) for start in range(len(parts)) for stop in range(start + 1, len(parts) + 1)}
        for parts in above
    ]
    yield from sorted(runs[0] & runs[1])


def _put(path: str, name: str, placeholder: str) -> str:
    """Put a placeholder in the place of a name at the beginning of parts of a path."""
    return re.sub(rf"(?<![^/]){re.escape(name)}(?![A-Za-z0-9])", placeholder, path)


def stem_templates(found: Scan) -> dict[str, Counter[str]]:
    """Return templates of masks with an image's whole name in theirs, by the images' template, and how often."""
    folders: dict[str, list[str]] = defaultdict(list)  # by the name of an image
    for folder, names in found.frames.items():
        for name in names:
            stem, ending = os.path.splitext(name)
            folders[stem].append(folder if folder and folder not in found.masks else f"{folder}/*{ending}".lstrip("/"))
    pairs: dict[Templates, None] = {}
    masks = list(joined(found.masks))
    for mask in masks[:: max(1, len(masks) // _LOOKED_AT)]:
        if held := _held_stem(mask, folders):
            stem, residual = held
            here = set(mask.split("/"))
            pairs[max(folders[stem], key=lambda image: len(here & set(image.split("/")))), residual] = None
    by_image: dict[str, Counter[str]] = defaultdict(Counter)
    for image, residual in pairs:
        for image_template, mask_template in ((image, residual), *with_video(image, residual)):
            by_image[image_template][mask_template] += 1
    return by_image


def _held_stem(mask: str, stems: Mapping[str, object]) -> tuple[str, str] | None:
    """Return an image's name that a mask's path holds, and the path with a * instead of it."""
    path, ending = os.path.splitext(mask)
    folder, slash, name = path.rpartition("/")
    parts = folder.split("/")
    if name in stems:
        return name, f"{folder}{slash}*{ending}"
    for place in reversed(range(len(parts))):
        if parts[place] in stems:
            return parts[place], "/".join([*parts[:place], "*", *parts[place + 1 :], name]) + ending
    starts = [0, *(match.end() for match in re.finditer(_SEPARATORS, name))]
    stops = [*(match.start() for match in re.finditer(_SEPARATORS, name)), len(name)]
    held = [(start, stop) for start in starts for stop in stops if start < stop and name[start:stop] in stems]
    if not held:
        return None
    start, stop = max(held, key=lambda span: span[1] - span[0])
    return name[start:stop], f"{folder}{slash}{name[:start]}*{name[stop:]}{ending}"


def class_template(masks: Iterable[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the template with {class} of templates that differ in one word, and these words; None of others."""
    listed = sorted(masks)
    if len(listed) < 2:
        return None
    before = _common_start(listed)
    after = _common_start([one[len(before) :][::-1] for one in listed])[::-1]
    words = [one[len(before) : len(one) - len(after)] for one in listed]
    called = {re.sub(r"\d+\Z", "", word) for word in words}  # class1, class2: the classes are numbers
    if len(called) == 1 and "" not in (start := called.pop(), *(word[len(start) :] for word in words)):
        before, words = before + start, [word[len(start) :] for word in words]
    if not all(words) or any(set(word) & set("/*{}") for word in words):
        return None
    return f"{before}{CLASS}{after}", tuple(words)


def _common_start(texts: Sequence[str]) -> str:
    """Return what texts begin with, up to a separator."""
    first, last = min(texts), max(texts)
    same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return re.sub(r"[^/_\-. ]*\Z", "", first[:same])
