"""Propose templates for the paths of images and masks from the words that both paths share."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from shared_components.data.custom.description import CLASS, GROUP, VIDEO
from shared_components.data.custom.frame_names import frame_span
from shared_components.data.custom.scan import Scan, joined
from shared_components.data.files import natural_order

Templates = tuple[str, str]
"""Template for images and template for masks."""
_TRIED = 12  # image folders whose names may contain a video's name
_MOST_PAIRS = 200  # pairs of templates without {video}
_COMPARED = 2_000  # masks that are compared with the names of images
_SEPARATORS = r"[_\-. ]"
_USUAL = {
    "images", "image", "imgs", "img", "frames", "frame", "masks", "mask", "labels", "label", "raw", "data", "video",
    "videos", "seg", "annotations", "rgb", "left", "right", "gt", "groundtruth", "ground", "truth", "segmentation",
}  # fmt: skip
"""Folder names that are no video names."""

Sources = Mapping[str, frozenset[str]]
"""Frame names of each source: a folder, a group of files in a folder (`a/*_mask.png`), or a file (none)."""


def sources_of(folders: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Return the sources of images, given the masks as `others`, or the sources of masks, given the images."""
    sources: dict[str, set[str]] = defaultdict(set)
    for folder, names in folders.items():
        for name in names:
            stem, ending = os.path.splitext(name)
            start, end = frame_span(stem)
            sources[f"{folder}/{stem[:start]}*{stem[end:]}{ending}".lstrip("/")].add(stem[start:end])
        if folder not in others and folder:
            sources[folder] = {os.path.splitext(name)[0] for name in names}
    return {source: frozenset(frames) for source, frames in sources.items()}


def templates(images: Sources, masks: Sources) -> Iterator[Templates]:
    """Yield templates with the words that the paths of an image and a mask share."""
    plain = 0
    for image in sorted(images, key=lambda name: (len(name.split("/")), natural_order(name)))[:_TRIED]:
        for mask in masks:
            yield from _with_video(image, mask)
            if plain < _MOST_PAIRS and (not images[image] or not masks[mask] or images[image] & masks[mask]):
                plain += 1
                yield image, mask


def _with_video(image: str, mask: str) -> Iterator[Templates]:
    """Yield two paths with {video} for a possible video name, and with {group} for folders above."""
    shared = _words(image) & _words(mask)
    for video in sorted(shared, key=lambda word: (-len(word), word)):
        pair = _put(image, video, VIDEO), _put(mask, video, VIDEO)
        yield pair
        for group in sorted(_folders_above(pair[0]) & _folders_above(pair[1])):
            yield _put(pair[0], group, GROUP), _put(pair[1], group, GROUP)


def _words(path: str) -> set[str]:
    """Return possible video names: each part of a path without its ending, whole or up to a separator."""
    words: set[str] = set()
    for part in path.split("/"):
        stem = re.sub(r"\.(nii\.gz|[A-Za-z0-9]{2,4})$", "", part)
        words |= {stem[: match.start()] for match in re.finditer(r"[_\-. *]|\Z", stem)}
    return {w for w in words if w and w[-1] not in "_-. *" and "*" not in w and w.lower() not in _USUAL}


def _folders_above(path: str) -> set[str]:
    """Return the folders above {video}, and each run of such folders."""
    parts = path[: path.index(VIDEO)].split("/")[:-1]
    return {"/".join(parts[start:stop]) for start, stop in combinations(range(len(parts) + 1), 2)}


def _put(path: str, name: str, placeholder: str) -> str:
    """Replace a name at the beginning of parts of a path by a placeholder."""
    return re.sub(rf"(?<![^/]){re.escape(name)}(?![A-Za-z0-9])", placeholder, path)


def stem_templates(files: Scan) -> dict[str, Counter[str]]:
    """Count templates of masks whose paths contain an image's name, by the images' template."""
    folders: dict[str, list[str]] = defaultdict(list)  # by image name
    for folder, names in files.frames.items():
        for name in names:
            stem, ending = os.path.splitext(name)
            folders[stem].append(folder if folder and folder not in files.masks else f"{folder}/*{ending}".lstrip("/"))
    pairs: dict[Templates, None] = {}
    masks = list(joined(files.masks))
    for mask in masks[:: max(1, len(masks) // _COMPARED)]:
        if match := _without_stem(mask, folders):
            stem, template = match
            parts = set(mask.split("/"))
            pairs[max(folders[stem], key=lambda image: len(parts & set(image.split("/")))), template] = None
    by_image: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        for image, template in (pair, *_with_video(*pair)):
            by_image[image][template] += 1
    return by_image


def _without_stem(mask: str, stems: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the image name in a mask's path, and the path with * instead; None if there is no name."""
    path, ending = os.path.splitext(mask)
    folder, slash, name = path.rpartition("/")
    if name in stems:
        return name, f"{folder}{slash}*{ending}"
    parts = folder.split("/")
    for place in reversed(range(len(parts))):
        if parts[place] in stems:
            return parts[place], "/".join([*parts[:place], "*", *parts[place + 1 :], name]) + ending
    starts = [0, *(match.end() for match in re.finditer(_SEPARATORS, name))]
    stops = [*(match.start() for match in re.finditer(_SEPARATORS, name)), len(name)]
    spans = [(start, stop) for start in starts for stop in stops if start < stop and name[start:stop] in stems]
    if not spans:
        return None
    start, stop = max(spans, key=lambda span: span[1] - span[0])
    return name[start:stop], f"{folder}{slash}{name[:start]}*{name[stop:]}{ending}"


def class_template(masks: Iterable[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the template with {class} for templates that differ in one word, and the words; else None."""
    texts = sorted(masks)
    if len(texts) < 2:
        return None
    before = _common_start(texts)
    after = _common_start([text[len(before) :][::-1] for text in texts])[::-1]
    words = [text[len(before) : len(text) - len(after)] for text in texts]
    prefixes = {re.sub(r"\d+\Z", "", word) for word in words}  # class1, class2: the classes are numbers
    if len(prefixes) == 1 and "" not in (prefix := prefixes.pop(), *(word[len(prefix) :] for word in words)):
        before, words = before + prefix, [word[len(prefix) :] for word in words]
    if not all(words) or any(set(word) & set("/*{}") for word in words):
        return None
    return f"{before}{CLASS}{after}", tuple(words)


def _common_start(texts: Sequence[str]) -> str:
    """Return the common beginning of texts, up to a separator."""
    first, last = min(texts), max(texts)
    same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return re.sub(r"[^/_\-. ]*\Z", "", first[:same])
