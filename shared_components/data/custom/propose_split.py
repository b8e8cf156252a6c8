"""Propose training, validation and test videos, by folder names or else by order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

Split = dict[str, list[Any]]
_SHARE = 5  # one video in so many is for validation, and one for the test
_WORDS = {
    "train": ("train", "training", "trn", "trainset"),
    "validation": ("val", "valid", "validation", "validate", "validating", "valset"),
    "test": ("test", "testing", "tst", "testset"),
}
"""Names of folders and videos by split."""


def named_split(video: str) -> str:
    """Return the split in a video's name or in its folder's, as in `train/op_1` and `test_9`; else ""."""
    for part in video.split("/"):
        words = re.findall(r"[a-z]+", part.lower())
        for split, known in _WORDS.items():
            if words and words[0] in known:
                return split
    return ""


def propose_split(videos: Sequence[str], frames: Callable[[str], int]) -> Split:
    """Propose a split of videos by their names; without such names the last ones validate and test.

    One video is cut by time. Where videos are called after training, those without a split's name are in none.

    Args:
        videos: in natural order.
        frames: how many labelled frames a video has.
    """
    if len(videos) == 1:
        return _by_time(videos[0], frames(videos[0]))
    by_name: Split = {split: [video for video in videos if named_split(video) == split] for split in _WORDS}
    rest = by_name["train"] or [video for video in videos if not named_split(video)]
    split: Split = {"train": rest, "validation": by_name["validation"], "test": by_name["test"]}
    missing = [name for name in ("validation", "test") if not by_name[name]]
    if len(rest) == 1 and missing:
        return _with_cut(split, rest[0], frames(rest[0]), missing)
    cut = max(1, len(rest) // _SHARE)
    for name in reversed(missing[: len(rest) - 1]):  # two videos are for training and validation
        split[name], rest[:] = rest[-cut:], rest[:-cut]
    return {name: listed for name, listed in split.items() if listed}


def _with_cut(split: Split, video: str, frames: int, missing: Sequence[str]) -> Split:
    """Cut a single training video by time if no video validates: its last part does."""
    stop = max(1, frames * 4 // 5)
    if "validation" in missing and stop < frames:
        split |= {"train": [{video: [0, stop]}], "validation": [{video: [stop, frames]}]}
    return {name: listed for name, listed in split.items() if listed}


def _by_time(video: str, frames: int) -> Split:
    first, second = max(1, frames * 3 // 5), max(2, frames * 4 // 5)
    if frames < 3:
        return {"train": [video]}
    parts = {"train": [0, first], "validation": [first, second], "test": [second, frames]}
    return {name: [{video: bounds}] for name, bounds in parts.items() if bounds[0] < bounds[1]}
