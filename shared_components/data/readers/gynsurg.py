"""GynSurg, gynaecologic laparoscopy: clips of actions, bleeding and smoke (Nasirihaghighi et al., arXiv 2506.11356).

    root[/GynSurg_Action_3sec]/GynSurg_{action,bleeding,smoke}_dataset/<class>/<clip>.mp4     3 s, 30 fps
    root[/GynSurg_Action_3sec]/GynSurg_{...}_dataset/**/<any>.csv     split,set_type,case_id,vids,labels

A video is a clip, "bleeding/<clip>", and its one target is of the data set that it lies in. Clips are decoded in place.
A clip's class is the name of its folder, as in the release. Tables below the clips replace it by their label: a name,
or a number in the order of `classes.LABELS`.

The folds are tables of FL-EndoViT's repository, fine_tuning_gynsurg/<kind>/df_<kind>.csv: folds 0 to 3, each with
training and test clips. `vids` ends in the clip's file name. Its times are written with :, %3A or _, whatever the file
has: a clip's name here has _.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

import numpy as np

from shared_components.data.classes import LABELS
from shared_components.data.files import DataError, natural_order
from shared_components.data.readers import Listing, Reader
from shared_components.data.tables import changed, records, row

KINDS = ("action", "bleeding", "smoke")
_COLUMNS = ("split", "set_type", "case_id", "vids", "labels")
_TABLE = "labels.csv"  # stands for all tables of a kind
SETS = MappingProxyType(
    {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
)
"""Of `set_type`, in our words."""


class GynSurg(Reader):
    TARGETS = KINDS
    LABELS = MappingProxyType({kind: f"gynsurg_{kind}" for kind in KINDS})
    RATE = 30.0

    def videos(self, root: Path) -> list[str]:
        return [
            f"{kind}/{stem}" for kind, folder in _folders(root).items() for stem in _clips(folder, _touched(folder))
        ]

    def frames(self, root: Path, video: str) -> Listing:
        kind, stem = video.split("/")
        targets = {name: row(_folders(root)[kind] / _TABLE, f"{name}:{stem}") for name in KINDS}
        return [(number, image, targets) for number, image in self.images(root, video).items()]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        from shared_components.data.video import frame_count

        kind, stem = video.split("/")
        folder = _folders(root)[kind]
        clip = _clips(folder, _touched(folder))[stem]
        return {number: clip / f"{number:06d}" for number in range(frame_count(clip))}

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (address,) = files
        folder, (_, stem) = address.parent.parent, address.name.split(":", 1)
        kind = _kind(folder)
        if name != kind:
            what = f"has labels of {kind}, and {name!r} is asked for of {stem}"
            raise DataError(folder, what, f"name clips of {name} in the split")
        tables = tuple((path, changed(path)) for path in _tables(folder, _touched(folder), "*.csv"))
        labels = _labels(folder, tables) if tables else _class_folders(folder, _touched(folder))
        if stem not in labels:
            raise DataError(folder, f"has no label of the clip {stem} in its tables", "add it, or take the clip out")
        return np.array(_class(folder, kind, labels[stem]), np.int64)


def folds(root: Path, kind: str, tables: Path | None = None) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the videos of each official fold by our names of its sets: {"1": {"train": ..., "test": ...}, ...}.

    Args:
        tables: holds the tables, called *<kind>*.csv; None: those below the folder of the clips.

    Raises:
        DataError: the tables are missing, or a case is in two sets of a fold.
    """
    every = fold_cases(root, kind, tables)
    return {fold: {name: tuple(videos) for name, videos in sets.items()} for fold, sets in every.items()}


def fold_cases(root: Path, kind: str, tables: Path | None = None) -> dict[str, dict[str, dict[str, str]]]:
    """Return what `folds` does, with the case (patient) of each video."""
    folder = _folders(root)[kind] if tables is None else tables
    listed = _tables(folder, _touched(folder), "*.csv" if tables is None else f"*{kind}*.csv")
    if not listed:
        what = f"holds no table of the folds of {kind} (.csv)"
        raise DataError(folder, what, "name the folder fine_tuning_gynsurg of FL-EndoViT's repository")
    found: dict[str, dict[str, dict[str, str]]] = {}
    for one in _joined(folder, tuple((path, changed(path)) for path in listed)):
        if one["set_type"].lower() not in SETS:
            raise DataError(folder, f"has the set_type {one['set_type']!r}", f"write one of {', '.join(SETS)}")
        split = found.setdefault(one["split"], {}).setdefault(SETS[one["set_type"].lower()], {})
        split[f"{kind}/{one['vids']}"] = one["case_id"]
    for fold, sets in found.items():
        cases = [case for videos in sets.values() for case in set(videos.values())]
        if twice := sorted({case for case in cases if cases.count(case) > 1}):
            what = f"has the case {twice[0]} in two sets of fold {fold}"
            raise DataError(folder, what, "correct its tables: a patient is in one set of a fold")
    return dict(sorted(found.items()))


def kinds(root: Path) -> list[str]:
    """List the kinds of clips that are there."""
    return list(_folders(root))


def _folders(root: Path) -> dict[str, Path]:
    """Return the folder of each kind of clips that is there."""
    for base in (root, root / "GynSurg_Action_3sec"):
        found = {kind: base / f"GynSurg_{kind}_dataset" for kind in KINDS}
        if there := {kind: folder for kind, folder in found.items() if folder.is_dir()}:
            return there
    raise DataError(root, "holds no GynSurg_<kind>_dataset", "set 'root' to the folder GynSurg_Action_3sec")


def _kind(folder: Path) -> str:
    return folder.name.split("_")[1]


@lru_cache(maxsize=16)
def _clips(folder: Path, stamp: int) -> Mapping[str, Path]:
    """Return the clips below a folder by their names, in natural order."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.mp4")):
        if path.name.startswith("."):
            continue
        stem = _plain(path.name)
        if stem in found:
            raise DataError(path, f"has the name of {found[stem]}", "rename one of them, and in the tables")
        found[stem] = path
    return {stem: found[stem] for stem in sorted(found, key=natural_order)}


def _touched(folder: Path) -> int:
    """Return when a folder or one directly below it was changed, in ns; DataError: it is no folder."""
    if not folder.is_dir():
        raise DataError(folder, "is no folder", "correct the path")
    return max(changed(path) for path in (folder, *folder.iterdir()) if path.is_dir())


def _plain(name: str) -> str:
    """Return the name of a clip by its file, without ending."""
    return Path(unquote(name)).stem.replace(":", "_")


@lru_cache(maxsize=16)
def _class_folders(folder: Path, stamp: int) -> dict[str, str]:
    """Return the name of each clip's folder."""
    return {stem: path.parent.name for stem, path in _clips(folder, stamp).items()}


@lru_cache(maxsize=16)
def _tables(folder: Path, stamp: int, pattern: str) -> list[Path]:
    return [path for path in sorted(folder.rglob(pattern)) if not path.name.startswith(".")]


@lru_cache(maxsize=16)
def _labels(folder: Path, tables: tuple[tuple[Path, int], ...]) -> dict[str, str]:
    """Return the label of every clip of a kind."""
    return {one["vids"]: one["labels"] for one in _joined(folder, tables)}


@lru_cache(maxsize=16)
def _joined(folder: Path, tables: tuple[tuple[Path, int], ...]) -> tuple[Mapping[str, str], ...]:
    """Return the rows of tables, `vids` without folder and ending; DataError: a clip has two labels."""
    rows = [{**one, "vids": _plain(one["vids"])} for path, _ in tables for one in records(path, columns=_COLUMNS)]
    labels: dict[str, str] = {}
    for one in rows:
        if labels.setdefault(one["vids"], one["labels"]) != one["labels"]:
            what = f"labels the clip {one['vids']} both {labels[one['vids']]!r} and {one['labels']!r}"
            raise DataError(folder, what, "correct its tables")
    return tuple(rows)


def _class(folder: Path, kind: str, label: str) -> int:
    """Return the class of a label, a number or a name, however it is spaced."""
    names = LABELS[f"gynsurg_{kind}"]
    if label.isdecimal() and int(label) < len(names):
        return int(label)
    plain = [re.sub(r"[^a-z]|and", "", name.lower()) for name in (*names, label)]
    if plain[-1] in plain[:-1]:
        return plain.index(plain[-1])
    raise DataError(folder, f"has the label {label!r}", f"write 0 to {len(names) - 1} or one of {', '.join(names)}")
