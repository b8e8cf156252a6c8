"""The four folds of GynSurg's clips as sites, from the tables of FL-EndoViT's repository (Table 10).

The tables list training and test clips. FL-EndoViT chooses its best epoch on the test clips; here, a share of the
training patients is used for validation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shared_components.data.files import DataError
from shared_components.data.readers import find_reader
from shared_components.data.readers.gynsurg import fold_cases, kinds
from shared_components.data.site import SPLITS

MOST_MISSING = 0.05
"""Share of a fold's clips that may be missing on the disk."""
Cases = Mapping[str, str]
"""The case (patient) of each video."""


def fold_sites(
    root: Path, kind: str | None, tables: Path, *, validation: float
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield for each fold of a kind of clips the content of a site.yaml, and the videos that are not on the disk.

    Args:
        root: As of `dataset: gynsurg`.
        kind: One of `readers.gynsurg.KINDS`; None: all kinds that are there.
        tables: Folder with the tables, such as fine_tuning_gynsurg.
        validation: Share of the training patients whose clips are for validation, at least one patient.

    Raises:
        DataError: A table is missing or wrong, more than `MOST_MISSING` of its clips are, or a split would be empty.
    """
    there = set(find_reader("gynsurg").videos(root))
    folds = (
        (one, *fold) for one in ([kind] if kind else kinds(root)) for fold in fold_cases(root, one, tables).items()
    )
    for one, fold, sets in folds:
        named = [video for videos in sets.values() for video in videos]
        missing = [video for video in named if video not in there]
        if len(missing) > MOST_MISSING * len(named):
            what = f"lacks {len(missing)} of the {len(named)} clips of fold {fold} of {one}, such as {missing[0]}"
            raise DataError(root, what, "unpack the whole release there")
        found = {name: {video: videos[video] for video in videos if video in there} for name, videos in sets.items()}
        if "validation" not in found:
            found |= _parted(found.get("train", {}), validation)
        if empty := [name for name in SPLITS if not found.get(name)]:
            raise DataError(
                tables, f"leaves fold {fold} of {one} without clips for {empty[0]}", "copy the tables again"
            )
        yield {
            "name": f"{one}-fold-{fold}", "dataset": "gynsurg", "root": str(root.resolve()), "task": "classification",
            "classes": f"gynsurg_{one}", "split": {name: list(found[name]) for name in SPLITS}, "publish": [],
        }, missing  # fmt: skip


def _parted(train: Cases, share: float) -> dict[str, dict[str, str]]:
    """Part training videos by patients; those whose SHA-256 comes first are for validation."""
    cases = sorted(set(train.values()), key=lambda case: hashlib.sha256(case.encode()).digest())
    chosen = cases[: max(1, round(share * len(cases)))]
    return {
        "train": {video: case for video, case in train.items() if case not in chosen},
        "validation": {video: case for video, case in train.items() if case in chosen},
    }
