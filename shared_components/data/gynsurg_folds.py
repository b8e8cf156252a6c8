"""The four folds of GynSurg as sites, from the tables of FL-EndoViT's repository (Table 10).

The tables list training and test clips. FL-EndoViT chooses its best epoch on the test clips; here, a share of the
training patients is used for validation.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader
from shared_components.data.readers.gynsurg import fold_cases, kinds
from shared_components.data.site import SPLITS

_MAX_MISSING = 0.05  # share of a fold's clips


def fold_sites(
    root: Path, kind: str | None, tables: Path, *, validation: float
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the content of a site.yaml for each fold of a kind of clips, and the videos that are not on the disk.

    ``kind`` is in `readers.gynsurg.KINDS`; None means all kinds on the disk. ``tables`` is a folder such as
    fine_tuning_gynsurg; tables that do not fit the clips raise a DataError. ``validation`` is the share of the training
    patients for validation, at least one patient.
    """
    on_disk = set(find_reader("gynsurg").videos(root))
    for clips in [kind] if kind else kinds(root):
        for fold, sets in fold_cases(root, clips, tables).items():
            videos = [video for cases in sets.values() for video in cases]
            missing = [video for video in videos if video not in on_disk]
            if len(missing) > _MAX_MISSING * len(videos):
                share = f"{len(missing)} of the {len(videos)} clips"
                what = f"lacks {share} of fold {fold} of {clips}, such as {missing[0]}"
                raise DataError(root, what, "unpack the whole release there")
            split = {name: {v: case for v, case in cases.items() if v in on_disk} for name, cases in sets.items()}
            if "validation" not in split:
                split |= _split_patients(split.get("train", {}), validation)
            if empty := [name for name in SPLITS if not split.get(name)]:
                what = f"leaves fold {fold} of {clips} without clips for {empty[0]}"
                raise DataError(tables, what, "copy the tables again")
            yield {
                "name": f"{clips}-fold-{fold}", "dataset": "gynsurg", "root": str(root.resolve()),
                "task": "classification", "classes": f"gynsurg_{clips}",
                "split": {name: list(split[name]) for name in SPLITS}, "publish": [],
            }, missing  # fmt: skip


def _split_patients(train: Mapping[str, str], share: float) -> dict[str, dict[str, str]]:
    """Split training videos, with their patients, by patient; the first SHA-256 digests are for validation."""
    patients = sorted(set(train.values()), key=lambda patient: hashlib.sha256(patient.encode()).digest())
    chosen = patients[: max(1, round(share * len(patients)))]
    return {
        "train": {video: patient for video, patient in train.items() if patient not in chosen},
        "validation": {video: patient for video, patient in train.items() if patient in chosen},
    }
