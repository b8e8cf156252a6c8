"""Choose the frames to train, validate and test on, and list the limits of their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shared_components.common.counted import counted
from shared_components.data.check import check_site, readable_samples
from shared_components.data.classes import IGNORED
from shared_components.data.samples import Sample, SampleSpec, read_sample, samples
from shared_components.data.site import SPLITS, Site, SiteError

MOST = {"validation": 32, "test": 64}
"""Frames that are scored at most: equally spaced ones of a split."""
FEWEST = len(SPLITS)
FEW = 10
"""Number of frames below which a score is announced as one of few frames."""
_DOES = {"train": "learnt", "validation": "validated", "test": "scored"}

Frames = Mapping[str, Sequence[Sample]]
"""By split."""


def frames_of(site: Site, spec: SampleSpec) -> dict[str, list[Sample]]:
    """Read all files of a site and return the samples of each split that can be used, of long ones `MOST`.

    Raises:
        SiteError: A split has no frames or more unreadable ones than the site's quarantine allows, there are fewer
            than three labelled frames, or no frame of a split shows anything.
    """
    _refuse_few(site, spec)
    found = {}
    problems = check_site(site, spec, required=SPLITS)
    for split in SPLITS:
        ready, _ = readable_samples(site, split, spec, problems=problems)
        found[split] = evenly(ready, MOST[split]) if split in MOST else ready
        if "label" in spec.targets:
            _refuse_empty(site, split, found[split])
    return found


def evenly(chosen: Sequence[Sample], most: int) -> list[Sample]:
    """Return at most so many samples, equally spaced, in order."""
    count = min(len(chosen), most)
    return [chosen[len(chosen) * (2 * n + 1) // (2 * count)] for n in range(count)]


def _refuse_few(site: Site, spec: SampleSpec) -> None:
    """Refuse a site without a video, or a part of one, for each split; the sentence says how to cut one by time."""
    missing = [split for split in SPLITS if not site.split.get(split)]
    if not missing:
        return
    counts = {part.video: len(samples(site, split, spec)) for split, listed in site.split.items() for part in listed}
    total = sum(len(samples(site, split, spec)) for split in site.split)
    if total < FEWEST:
        raise SiteError(
            f"site {site.name}: has {counted(total, 'labelled frame')}, and {FEWEST} are needed, one each to train, to "
            "validate and to test; label more, at other moments or in other videos (docs/how-to/train.md)"
        )
    raise SiteError(
        f"{site.path}: 'split' names no video under {' and '.join(map(repr, missing))}; name one there, or cut one by "
        f"time, such as {missing[-1]}: [{{{next(iter(counts))}: [0, 5]}}] for its first five labelled frames"
    )


def _refuse_empty(site: Site, split: str, chosen: Sequence[Sample]) -> None:
    for sample in chosen:
        label = read_sample(sample).targets["label"]
        if np.any((label > 0) & (label != IGNORED)):
            return
    raise SiteError(
        f"site {site.name}: no frame of split {split!r} ({len(chosen)} in all) shows any of "
        f"{', '.join(site.classes[1:])}, so that nothing could be {_DOES[split]}; label frames that do, or name other "
        f"videos under {split!r} in {site.path}"
    )


def with_test(site: Site, spec: SampleSpec) -> dict[str, Any] | None:
    """Return a split with a test for a site that has none: its one video to validate is cut by time into two halves.

    None where it has a test or no training, or its validation is not one whole video of two or more labelled frames.
    """
    listed = site.split.get("validation", ())
    if (
        site.split.get("test")
        or not site.split.get("train")
        or len(listed) != 1
        or listed[0].stop is not None
        or listed[0].start
    ):
        return None
    count, video = len(samples(site, "validation", spec)), listed[0].video
    if count < 2:
        return None
    half = count // 2
    train = [part.video for part in site.split["train"]]
    return {"train": train, "validation": [{video: [0, half]}], "test": [{video: [half, count]}]}


def remarks(site: Site, found: Frames) -> Iterator[str]:
    """Say in a sentence each what the scores cannot show, and which labelled frames are not used."""
    tested = {sample.video for sample in found["test"]}
    if shared := sorted(tested & {sample.video for sample in found["train"]}):
        yield (
            f"the frames to test are of the same video as those to train on ({', '.join(shared)}): the scores show how "
            "well the model does on the rest of this video, and nothing about another video or patient"
        )
    elif shared := sorted(tested & {sample.video for sample in found["validation"]}):
        yield (
            f"the model is chosen and tested on parts of one video ({', '.join(shared)}): its score there is a little "
            "too good"
        )
    elif len(tested) == 1:
        yield f"all frames to test are of one video ({tested.pop()}): another may give another score"
    if unused := _unused(site):
        yield (
            f"labelled frames in no split, and not used: {unused}; add them under 'split' in {site.path}, or describe "
            "the folder anew (surgfl site init --force)"
        )
    tests, validates = len(found["test"]), len(found["validation"])
    if min(tests, validates) < FEW:
        yield (
            f"{counted(tests, 'frame')} will score the model, and {counted(validates, 'frame')} will choose its best "
            f"step: other frames may give another score; label more, until each has at least {FEW}"
        )


def _unused(site: Site) -> str:
    """Name the labelled frames of a site's own data that its split leaves out; of public data sets many do so."""
    if site.source.own is None:
        return ""
    reader, unused = site.source.reader, []
    for video in reader.videos(site.root):
        count = len(reader.frames(site.root, video))
        ranges = [part for listed in site.split.values() for part in listed if part.video == video]
        used = {n for part in ranges for n in range(count)[part.start : part.stop]}
        if len(used) < count:
            unused.append(f"{count - len(used)} of {video}")
    return ", ".join(unused)
