"""The nine data sets of Endo700k as sites of a pre-training (Batic et al., IJCARS 2024; FL-EndoViT, Table 8).

Each downstream task has a variant without the task's test videos of Cholec80, see `splits.LEFT_OUT`.
"""

from pathlib import Path
from typing import Any

from shared_components.common.counted import counted
from shared_components.data.files.images import DataError, natural_order
from shared_components.data.readers import find_reader
from shared_components.data.splits import LEFT_OUT, named, remove_test_videos

PARTS = {
    "heico": "heico", "cholec80": "cholec80_frames", "psi_ava": "psi_ava", "esad": "esad", "lapgyn4": "lapgyn4",
    "hsdb": "hsdb_instrument", "dsad": "dsad", "glenda": "glenda", "actions160": "surgical_actions160",
}  # fmt: skip
"""Data set of each site, from large to small; rendered sites have the same names (`site_sets`)."""
BEFORE = (*LEFT_OUT, "all")
"""Downstream tasks of a pre-training; "all" leaves out the videos of all three tasks."""


def left_out_videos(before: str) -> list[str]:
    """Return the Cholec80 videos that a pre-training for ``before`` leaves out; ValueError if it is not in `BEFORE`."""
    return named("cholec80", sorted({video for task in _tasks(before) for video in LEFT_OUT[task]}))


def _tasks(before: str) -> list[str]:
    if before not in BEFORE:
        raise ValueError(f"a pre-training comes before {', '.join(BEFORE)}, and not {before!r}; choose one of them")
    return list(LEFT_OUT) if before == "all" else [before]


def site_config(site: str, root: Path, *, before: str, validation: int = 1) -> dict[str, Any]:
    """Return the content of a site.yaml for a site of `PARTS` that trains on all videos that are not left out.

    The last ``validation`` videos are for validation instead. (EndoViT validates on 24 videos of Cholec80 that it also
    trains on.) ``root`` is the data set's folder in the official layout; too few videos raise a DataError.
    """
    dataset, videos = PARTS[site], find_reader(PARTS[site]).videos(root)
    for task in _tasks(before) if site == "cholec80" else ():  # compares numbers, not folder names
        videos = remove_test_videos(videos, "cholec80", task)
    videos = sorted(videos, key=natural_order)
    if len(videos) <= validation:
        what = f"has {counted(len(videos), 'video')} of {dataset} to train on"
        raise DataError(root, what, f"put more than {validation} there, as published")
    train = videos[: len(videos) - validation]
    split = {"train": train, **({"validation": videos[len(train) :]} if validation else {})}
    return {"name": site, "dataset": dataset, "root": str(root.resolve()), "split": split, "publish": []}
