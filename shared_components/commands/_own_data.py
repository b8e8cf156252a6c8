"""Describe a hospital's own data by its folder, by options, and by answers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shared_components.commands._talk import Talk, counts_read, share_read, yes_or_no, zero_or_one
from shared_components.common.counted import counted
from shared_components.data.custom.description import CLASS, KINDS, refuse_classes_of_films
from shared_components.data.custom.guess_layout import FolderLayout, class_words, guess_layout
from shared_components.data.custom.ids import (
    BACKGROUND,
    IGNORE,
    Value,
    class_name,
    grey,
    label_names,
    parse_ids,
    parse_value,
    parse_words,
    written,
)
from shared_components.data.custom.numbering import FRAMES
from shared_components.data.custom.scan import Scan
from shared_components.data.custom.survey import Values, numbering_of, own_videos, values_of, video_rate, words_of
from shared_components.data.site import SiteError


def describe_own(args: argparse.Namespace, folder: Path, talk: Talk, layout: FolderLayout) -> dict[str, Any]:
    videos = list(layout.videos) or own_videos(folder, layout)
    what = "label volumes" if layout.kind == "nifti" else "masks"
    print(f"{args.folder}: {counted(len(videos), 'video')} at {layout.images!r}, {what} at {layout.masks!r}")
    values, threshold = _values(args, folder, talk, layout, videos)
    described: dict[str, Any] = {
        "dataset": layout.kind,
        "images": layout.images,
        "masks": layout.masks,
        "ids": _class_words(args, talk, values, layout)
        if layout.words
        else _ids(args, talk, values, label_names(folder)),
    }
    if threshold is not None:
        described["threshold"] = threshold
    if values.unlabelled and _is_partly_labelled(args, talk, layout, values):
        described["partly_labelled"] = True
    rate = args.rate if args.rate is not None else video_rate(folder, layout, videos)
    described |= {**_numbering(args, talk, folder, layout, videos), **({} if rate is None else {"rate": rate})}
    if values.turned is not None and args.axes is None:
        print(
            f"note: {values.turned} says that its axes point otherwise than x, y, t; it is read as ITK-SNAP and 3D "
            "Slicer show it. If a script wrote it that did not mind the header: --axes stored"
        )
    if args.axes is not None:
        described["axes"] = args.axes
    return described


def own_layout(args: argparse.Namespace, folder: Path, files: Scan) -> FolderLayout:
    kind = args.dataset if args.dataset in KINDS else None
    if not args.images and not args.masks:
        return guess_layout(folder, kind, files=files)
    if not (args.images and args.masks):
        raise SiteError("--images and --masks go together; give both, or neither")
    refuse_classes_of_films(args.images, args.masks)
    words = class_words(files, args.images, args.masks) if CLASS in args.masks else ()
    return FolderLayout(kind or ("nifti" if ".nii" in args.masks else "frames"), args.images, args.masks, (), words)


def _values(
    args: argparse.Namespace, folder: Path, talk: Talk, layout: FolderLayout, videos: Sequence[str]
) -> tuple[Values, float | None]:
    """Read all masks; return their values, and the threshold of smoothed edges."""
    read = words_of
    if not layout.words:  # values that have a name already tell the numbers of a grey palette apart
        read = partial(values_of, known=[*_given_ids(args.id, coloured=False), *label_names(folder)])
    values = read(folder, layout, videos, threshold=args.threshold)
    if args.threshold is not None or not values.edges:
        return values, args.threshold
    what = f"the edges of the masks are smoothed (anti-aliased): {values.edges} of their values lie along edges alone"
    if not talk.ask:
        raise SiteError(
            f"{args.folder}: {what}; export the masks without smoothing, or add --threshold 0.5, by which a pixel "
            "on an edge is of a class from half of the pixel on"
        )
    question = f"{what}; from which share of a pixel on is it of a class"
    threshold = talk.get("--threshold", None, question, "0.5", share_read)
    return read(folder, layout, videos, threshold=threshold), threshold


def _numbering(
    args: argparse.Namespace, talk: Talk, folder: Path, layout: FolderLayout, videos: Sequence[str]
) -> dict[str, Any]:
    """Return the numbering of a video's masks, and the number of the first mask."""
    seen = None if layout.kind != "frames" or layout.words else numbering_of(folder, layout, videos)
    counts, first = args.mask_numbers, args.first_frame
    if seen is not None:
        known = seen.certain or (first is not None and (counts is not None or seen.counts == FRAMES))
        if not known and talk.ask:
            counts = talk.get("--mask-numbers", counts, _ASK_COUNTS, seen.counts, counts_read)
            first = talk.get(
                "--first-frame", first, "the number of the first one, 0 or 1", str(seen.first), zero_or_one
            )
        counts, first = counts or seen.counts, seen.first if first is None else first
        if not known and not talk.ask:
            print(_numbering_note(counts, first))
    numbering = {} if counts in (None, FRAMES) else {"mask_numbers": counts}
    return {**({"first_frame": first} if first else {}), **numbering}


_ASK_COUNTS = (
    "what masks are numbered by: all frames of the video (frames), those that FFmpeg's filter takes each second "
    "(fps=1), or every 25th frame (every=25)"
)


def _numbering_note(counts: str, first: int) -> str:
    if counts == FRAMES:
        other = 1 - first
        return f"note: the numbers of masks count a video's frames from {first}; if from {other}: --first-frame {other}"
    what, _, value = counts.partition("=")
    taken = f"each {value}th frame" if what == "every" else f"the frames that FFmpeg's filter {counts} takes"
    return (
        f"note: the numbers of masks count {taken}, from {first}, since each video has as many; if they count all "
        "frames: --mask-numbers frames"
    )


def _class_words(args: argparse.Namespace, talk: Talk, values: Values, layout: FolderLayout) -> dict[str, str]:
    """Return the class of each word in the names of masks: its given name, or the word itself; a number is asked."""
    given = {text.strip(): name.strip() for text, _, name in (one.partition("=") for one in args.id)}
    if odd := [text for text in given if text not in layout.words]:
        print(
            f"note: --id {odd[0]} is not used, since each class has masks of its own, called "
            f"{', '.join(layout.words)}; to give one another name: --id {layout.words[0]}=NAME"
        )
    table = {word: given[word] for word in layout.words if word in given}
    for word in layout.words:
        if word not in table and not word.isdecimal():
            table[word] = word
    for word in layout.words:
        if word not in table:
            where = f"in {values.masks[word]} of {counted(values.count, 'frame')}"
            question = f"masks called {word!r} ({where}) are (a name or {IGNORE})"
            table[word] = talk.get(f"--id {word}=NAME", None, question, None, class_name)
    return parse_words({word: table[word] for word in layout.words})


def _ids(args: argparse.Namespace, talk: Talk, values: Values, described: Mapping[int, str]) -> dict[Any, str]:
    """Return site.yaml's table of values and names: given, from a file, or asked; 0 and black are background."""
    table = _given_ids(args.id, coloured=values.coloured)
    for number, name in ({} if values.coloured else described).items():
        if number not in table:
            table[number] = class_name(name, str(number))
    zero: Value = (0, 0, 0) if values.coloured else 0
    unnamed = sorted((value for value in values.pixels if value not in table and value != zero), key=_number_first)
    if unnamed and not talk.ask:
        named = " ".join(f"--id '{written(value)}=NAME'" for value in unnamed)
        raise SiteError(f"the masks hold values that nobody has named; add {named} (or {IGNORE}, {BACKGROUND})")
    for value in unnamed:
        where = (
            f"in {values.masks[value]} of {counted(values.count, 'mask')}, {values.share(value):.2g} % of their pixels"
        )
        question = f"{written(value)} ({where}) is (a name, {BACKGROUND} or {IGNORE})"
        table[value] = talk.get("--id", None, question, None, class_name)
    parse_ids(table)
    ordered = sorted(table, key=_number_first)
    return {value if isinstance(value, int) else written(value): table[value] for value in ordered}


def _given_ids(given: Sequence[str], *, coloured: bool) -> dict[Value, str]:
    table: dict[Value, str] = {}
    for one in given:
        text, equals, name = (part.strip() for part in one.partition("="))
        if not equals:
            raise SiteError(f"--id is {one!r}; write a value and its name, such as '40=grasper' or '#ff8000=grasper'")
        value = parse_value(int(text) if text.isdecimal() else text)
        if coloured and isinstance(value, int):
            value = grey(value)
        if value in table:
            raise SiteError(f"--id gives {text} twice; keep one of them")
        table[value] = class_name(name, text)
    return table


def _number_first(value: Value) -> tuple[bool, Value]:
    return isinstance(value, tuple), value


def _is_partly_labelled(args: argparse.Namespace, talk: Talk, layout: FolderLayout, values: Values) -> bool:
    """Return whether frames without a mask are left out; a volume's frame without a label may also show nothing."""
    given = args.partly_labelled
    if layout.kind == "frames":
        question = f"leave out {counted(values.unlabelled, 'image')} without a mask"
        return talk.get("--partly-labelled", given, question, "yes", yes_or_no)
    question = (
        f"{values.unlabelled} of {counted(values.count, 'frame')} without a label: still to be labelled (yes), or with "
        "nothing to see (no)"
    )
    return talk.get("--partly-labelled or --no-partly-labelled", given, question, None, yes_or_no)
