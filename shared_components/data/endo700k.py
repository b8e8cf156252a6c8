"""The nine data sets of Endo700k as the sites of a pre-training (Batic et al., IJCARS 2024; FL-EndoViT, Table 8).

EndoViT has one variant per downstream task: the Cholec80 videos in the task's test set are left out, see
`splits.LEFT_OUT`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared_components.common.counted import counted
from shared_components.data.files import DataError, natural_order
from shared_components.data.readers import find_reader
from shared_components.data.splits import LEFT_OUT, named, without_tested

PARTS = {
    "heico": "heico", "cholec80": "cholec80_frames", "psi_ava": "psi_ava", "esad": "esad", "lapgyn4": "lapgyn4",
    "hsdb": "hsdb_instrument", "dsad": "dsad", "glenda": "glenda", "actions160": "surgical_actions160",
}  # fmt: skip
"""The dataset of each site, from the largest to the smallest, under the names of the rendered ones (`site_sets`)."""
EVERY = "all"
BEFORE = (*LEFT_OUT, EVERY)
"""What a pre-training may come before; `EVERY` leaves out the videos of all three tasks."""


def left_out(before: str) -> list[str]:
    """Return the videos of Cholec80 that a pre-training leaves out; ``before`` is one of `BEFORE`.

    Raises:
        ValueError: it is another word.
    """
    return named("cholec80", sorted({video for task in _tasks(before) for video in LEFT_OUT[task]}))


def _tasks(before: str) -> list[str]:
    if before not in BEFORE:
        raise ValueError(f"a pre-training comes before {', '.join(BEFORE)}, and not {before!r}; choose one of them")
    return list(LEFT_OUT) if before == EVERY else [before]


def part_of(site: str, root: Path, *, before: str, validation: int = 1) -> dict[str, Any]:
    """Return the content of the site.yaml of one of `PARTS`, which trains on all videos but those that are left out.

    Args:
        root: The folder of its dataset, in the official layout.
        before: One of `BEFORE`.
        validation: How many of the videos, the last ones, are for validation instead of training: a federation needs
            some. (EndoViT validates on 24 videos of Cholec80 that it trains on, too.)

    Raises:
        DataError: the folder has no video of the dataset, or too few.
        ValueError: as of `left_out`.
    """
    dataset, every = PARTS[site], find_reader(PARTS[site]).videos(root)
    for task in _tasks(before) if site == "cholec80" else ():  # by their numbers, whatever the folders are called
        every = without_tested(every, "cholec80", task)
    found = sorted(every, key=natural_order)
    if len(found) <= validation:
        raise DataError(
            root,
            f"has {counted(len(found), 'video')} of {dataset} to train on",
            f"put more than {validation} there, as published",
        )
    train = found[: len(found) - validation]
    split = {"train": train, **({"validation": found[len(train) :]} if validation else {})}
    return {"name": site, "dataset": dataset, "root": str(root.resolve()), "split": split, "publish": []}
