"""Choose the frames to train, validate and test on, and list the limits of their scores."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shared_components.common.counted import counted
from shared_components.data.check import check_site, readable_samples
from shared_components.data.files.classes import IGNORED
from shared_components.data.samples import Sample, SampleSpec, read_sample, samples
from shared_components.data.site import SPLITS, Site, SiteError

MOST = {"validation": 32, "test": 64}  # maximum number of scored frames per split, equally spaced
FEWEST = len(SPLITS)
FEW = 10  # below this number of frames, a remark warns that scores are uncertain


def frames_of(site: Site, spec: SampleSpec) -> dict[str, list[Sample]]:
    """Read all files of a site and return the readable samples of each split, at most `MOST`.

    Raise SiteError if a split has no video, frames or labelled pixels, or more unreadable frames than allowed.
    """
    _refuse_few(site, spec)
    frames = {}
    problems = check_site(site, spec, required=SPLITS)
    for split in SPLITS:
        readable, _ = readable_samples(site, split, spec, problems=problems)
        frames[split] = evenly(readable, MOST[split]) if split in MOST else readable
        if "label" in spec.targets:
            _refuse_empty(site, split, frames[split])
    return frames


def evenly(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return at most `most` samples, equally spaced and in order."""
    count = min(len(samples), most)
    return [samples[len(samples) * (2 * n + 1) // (2 * count)] for n in range(count)]


def _refuse_few(site: Site, spec: SampleSpec) -> None:
    """Raise SiteError if a split has no video, and explain how to split a video by time."""
    missing = [split for split in SPLITS if not site.split.get(split)]
    if not missing:
        return
    videos = [part.video for parts in site.split.values() for part in parts]
    total = sum(len(samples(site, split, spec)) for split in site.split)
    if total < FEWEST:
        raise SiteError(
            f"site {site.name}: {counted(total, 'labelled frame')} of {FEWEST} needed to train, validate and test; "
            "label more, at other moments or in other videos (docs/how-to/train.md)"
        )
    raise SiteError(
        f"{site.path}: 'split' has no video under {' and '.join(map(repr, missing))}; add a video, or split one by "
        f"time, such as {missing[-1]}: [{{{videos[0]}: [0, 5]}}] for its first five labelled frames"
    )


def _refuse_empty(site: Site, split: str, frames: Sequence[Sample]) -> None:
    for sample in frames:
        label = read_sample(sample).targets["label"]
        if np.any((label > 0) & (label != IGNORED)):
            return
    raise SiteError(
        f"site {site.name}: no frame of split {split!r} ({len(frames)} in all) shows "
        f"{' or '.join(site.classes[1:])}; label frames that do, or list other videos under {split!r} in {site.path}"
    )


def with_test(site: Site, spec: SampleSpec) -> dict[str, Any] | None:
    """Return a split whose test is the second half of the validation video; None if the site needs or allows none."""
    parts = site.split.get("validation", ())
    if site.split.get("test") or not site.split.get("train") or len(parts) != 1:
        return None
    count, video = len(samples(site, "validation", spec)), parts[0].video
    if parts[0].stop is not None or parts[0].start or count < 2:
        return None
    half = count // 2
    train = [part.video for part in site.split["train"]]
    return {"train": train, "validation": [{video: [0, half]}], "test": [{video: [half, count]}]}


def remarks(site: Site, frames: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    """Yield a sentence for each limit of the scores, and for labelled frames that are not used."""
    tested = {sample.video for sample in frames["test"]}
    if shared := sorted(tested & {sample.video for sample in frames["train"]}):
        yield (
            f"test frames and training frames are from the same video ({', '.join(shared)}): the scores show how well "
            "the model does on the rest of this video, not on another video or patient"
        )
    elif shared := sorted(tested & {sample.video for sample in frames["validation"]}):
        yield f"validation and test use parts of the same video ({', '.join(shared)}): the score is a little too good"
    elif len(tested) == 1:
        yield f"all test frames are from one video ({tested.pop()}): other videos may give other scores"
    if unused := _unused(site):
        yield (
            f"labelled frames in no split, and not used: {unused}; add them under 'split' in {site.path}, or describe "
            "the folder again (surgfl site init --force)"
        )
    tests, validations = len(frames["test"]), len(frames["validation"])
    if min(tests, validations) < FEW:
        yield (
            f"{counted(tests, 'frame')} will score the model, and {counted(validations, 'frame')} will select its "
            f"checkpoint: other frames may give other scores; label at least {FEW} frames for each"
        )


def _unused(site: Site) -> str:
    """List the labelled frames of custom data that are in no split; public data sets have many."""
    if site.source.own is None:
        return ""
    reader, unused = site.source.reader, []
    for video in reader.videos(site.root):
        count = len(reader.frames(site.root, video))
        ranges = [part for parts in site.split.values() for part in parts if part.video == video]
        used = {n for part in ranges for n in range(count)[part.start : part.stop]}
        if len(used) < count:
            unused.append(f"{count - len(used)} of {video}")
    return ", ".join(unused)
