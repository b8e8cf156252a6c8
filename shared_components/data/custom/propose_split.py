"""Propose training, validation and test videos, by folder names or else by order."""

import re
from collections.abc import Callable, Sequence
from typing import Any

Split = dict[str, list[Any]]
_SHARE = 5  # one fifth of the videos for validation, and one fifth for the test
_WORDS = {
    "train": ("train", "training", "trn", "trainset"),
    "validation": ("val", "valid", "validation", "validate", "validating", "valset"),
    "test": ("test", "testing", "tst", "testset"),
}


def _named_split(video: str) -> str:
    """Return the split in a video's name or its folder's name, as in `train/op_1` and `test_9`; else ""."""
    for part in video.split("/"):
        words = re.findall(r"[a-z]+", part.lower())
        for split, known in _WORDS.items():
            if words and words[0] in known:
                return split
    return ""


def propose_split(videos: Sequence[str], frames: Callable[[str], int]) -> Split:
    """Propose a split of videos in natural order, by their names, or else with the last for validation and test.

    A single video is cut by time; `frames` returns a video's number of labelled frames. If some names contain a
    training split, videos without a split's name are left out.
    """
    if len(videos) == 1:
        return _by_time(videos[0], frames(videos[0]))
    split: Split = {name: [video for video in videos if _named_split(video) == name] for name in _WORDS}
    missing = [name for name in ("validation", "test") if not split[name]]
    rest = split["train"] = split["train"] or [video for video in videos if not _named_split(video)]
    if len(rest) == 1 and missing:
        video, count = rest[0], frames(rest[0])
        stop = max(1, count * 4 // 5)
        if "validation" in missing and stop < count:
            split |= {"train": [{video: [0, stop]}], "validation": [{video: [stop, count]}]}
    else:
        cut = max(1, len(rest) // _SHARE)
        for name in reversed(missing[: len(rest) - 1]):  # two videos are for training and validation
            split[name], rest[:] = rest[-cut:], rest[:-cut]
    return {name: names for name, names in split.items() if names}


def _by_time(video: str, frames: int) -> Split:
    first, second = max(1, frames * 3 // 5), max(2, frames * 4 // 5)
    if frames < 3:
        return {"train": [video]}
    parts = {"train": [0, first], "validation": [first, second], "test": [second, frames]}
    return {name: [{video: bounds}] for name, bounds in parts.items() if bounds[0] < bounds[1]}
