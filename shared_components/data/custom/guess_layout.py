"""Recognise the data in a folder: a public data set, or templates for the paths of images and masks."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from shared_components.data.custom.description import CLASS, GROUP, KINDS, VIDEO, Kind
from shared_components.data.custom.frame_names import frame_span, in_frame_order
from shared_components.data.custom.layout import file_pattern, video_of
from shared_components.data.custom.list_files import Scan, is_binary, joined, scan
from shared_components.data.files.images import DataError, natural_order
from shared_components.data.readers import find_reader, reader_names

_LISTED = 6  # files of each kind that the error message lists
_COMPARED = 100  # names of each group that are matched with templates
_TRIED = 60  # most frequent templates that are matched
_MEMBERS = 3  # masks of a class that are tested to be binary
Templates = tuple[str, str]
"""Template for images and template for masks."""
_TRIED_IMAGES = 12  # image folders whose names may contain a video's name
_MOST_PAIRS = 200  # pairs of templates without {video}
_COMPARED_MASKS = 2_000  # masks that are compared with the names of images
_SEPARATORS = r"[_\-. ]"
_USUAL = {
    "images", "image", "imgs", "img", "frames", "frame", "masks", "mask", "labels", "label", "raw", "data", "video",
    "videos", "seg", "annotations", "rgb", "left", "right", "gt", "groundtruth", "ground", "truth", "segmentation",
}  # fmt: skip
"""Folder names that are no video names."""

Sources = Mapping[str, frozenset[str]]
"""Frame names of each source: a folder, a group of files in a folder (`a/*_mask.png`), or a file (none)."""


@dataclass(frozen=True)
class FolderLayout:
    """Templates of the images and masks in a folder, see `description.Own`."""

    kind: Kind
    images: str
    masks: str
    videos: tuple[str, ...]  # with images and masks
    words: tuple[str, ...] = ()  # that replace {class} in the template of masks


def guess_layout(folder: Path, kind: Kind | None = None, *, files: Scan | None = None) -> FolderLayout:
    """Find templates for frames and masks, videos and numbered masks, or images and label volumes.

    Without `kind`, look for both kinds of masks; without `files`, list the folder. A DataError lists the data in the
    folder.
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
        "was searched for frames and masks of equal names, videos and masks numbered like their frames, and NIfTI "
        f"label volumes named like their video; it contains {_contents(files)}",
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
        # file names that differ in each frame are no evidence of a video
        single = VIDEO in image.rpartition("/")[2] and "*" in image
        pairs_found = sum(count for count in counted.values() if not single or count > 1)
        rank: tuple[int, ...] = pairs_found, len(counted), -sum(map(len, counted))
        rank += (image, mask) in by_number, -len(image) - len(mask)
        if counted and (best is None or rank > best[0]):
            videos = sorted((video for video in counted if video), key=natural_order)
            best = rank, FolderLayout(kind, image, mask, tuple(videos), words)
    return None if best is None else best[1]


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
    """Return the public data set in a folder; None for other data; DataError if `dataset` is given but not there."""
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
        raise DataError(root, f"contains no videos of {dataset}", "correct the folder")
    _, image, targets = listing[0]
    reader.read_image(image)
    for name, files in targets.items():
        reader.read_target(name, files)


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
    for image in sorted(images, key=lambda name: (len(name.split("/")), natural_order(name)))[:_TRIED_IMAGES]:
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
    for mask in masks[:: max(1, len(masks) // _COMPARED_MASKS)]:
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
    first, last = min(texts), max(texts)
    same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return re.sub(r"[^/_\-. ]*\Z", "", first[:same])
