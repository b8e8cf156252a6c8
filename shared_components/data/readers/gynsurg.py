"""GynSurg, gynaecologic laparoscopy: clips of actions, bleeding and smoke (Nasirihaghighi et al., arXiv 2506.11356).

    root[/GynSurg_Action_3sec]/GynSurg_{action,bleeding,smoke}_dataset/<class>/<clip>.mp4     3 s, 30 fps
    root[/GynSurg_Action_3sec]/GynSurg_{...}_dataset/**/<any>.csv     split,set_type,case_id,vids,labels

A video is a clip, "bleeding/<clip>", with one target, its kind. Clips are decoded in place. A clip's class is the name
of its folder. Tables below the clips replace it by their label: a name, or a number in the order of `classes.LABELS`.

The folds are tables of FL-EndoViT's repository, fine_tuning_gynsurg/<kind>/df_<kind>.csv: folds 0 to 3, each with
training and test clips. `vids` ends in the clip's file name. Tables and files write times with :, %3A or _; clip names
here have _.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

import numpy as np

from shared_components.data.files.classes import LABELS
from shared_components.data.files.images import DataError, natural_order
from shared_components.data.files.tables import changed, records, row
from shared_components.data.readers import Listing, Reader

KINDS = ("action", "bleeding", "smoke")
_COLUMNS = ("split", "set_type", "case_id", "vids", "labels")
_TABLE = "labels.csv"  # represents all tables of a kind
_SETS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


class GynSurg(Reader):
    TARGETS = KINDS
    LABELS = MappingProxyType({kind: f"gynsurg_{kind}" for kind in KINDS})
    RATE = 30.0

    def videos(self, root: Path) -> list[str]:
        return [f"{kind}/{stem}" for kind, folder in _folders(root).items() for stem in _clips(folder)]

    def frames(self, root: Path, video: str) -> Listing:
        kind, stem = video.split("/")
        targets = {name: row(_folders(root)[kind] / _TABLE, f"{name}:{stem}") for name in KINDS}
        return [(number, image, targets) for number, image in self.images(root, video).items()]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        from shared_components.data.files.video import frame_count

        kind, stem = video.split("/")
        clip = _clips(_folders(root)[kind])[stem]
        return {number: clip / f"{number:06d}" for number in range(frame_count(clip))}

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (address,) = files
        folder, (_, stem) = address.parent.parent, address.name.split(":", 1)
        kind = folder.name.split("_")[1]
        if name != kind:
            what = f"has labels of {kind}, and {name!r} is asked for of {stem}"
            raise DataError(folder, what, f"name clips of {name} in the split")
        tables = _tables(folder, _touched(folder), "*.csv")
        if tables:
            label = _joined(folder, _stamped(tables))[1].get(stem)
        else:
            clip = _clips(folder).get(stem)
            label = clip.parent.name if clip else None
        if label is None:
            raise DataError(folder, f"has no label of the clip {stem} in its tables", "add it, or take the clip out")
        return np.array(_class(folder, kind, label), np.int64)


def fold_cases(root: Path, kind: str, tables: Path | None = None) -> dict[str, dict[str, dict[str, str]]]:
    """Return the case (patient) of each video by fold and set: {"1": {"train": {video: case}, "test": ...}, ...}.

    Read the tables *<kind>*.csv in the folder ``tables``, or else the tables below the folder of the clips. DataError
    if there are none, or a case is in two sets of a fold.
    """
    folder = _folders(root)[kind] if tables is None else tables
    paths = _tables(folder, _touched(folder), "*.csv" if tables is None else f"*{kind}*.csv")
    if not paths:
        what = f"contains no table of the folds of {kind} (.csv)"
        raise DataError(folder, what, "name the folder fine_tuning_gynsurg of FL-EndoViT's repository")
    folds: dict[str, dict[str, dict[str, str]]] = {}
    for line in _joined(folder, _stamped(paths))[0]:
        if line["set_type"].lower() not in _SETS:
            raise DataError(folder, f"has the set_type {line['set_type']!r}", f"write one of {', '.join(_SETS)}")
        videos = folds.setdefault(line["split"], {}).setdefault(_SETS[line["set_type"].lower()], {})
        videos[f"{kind}/{line['vids']}"] = line["case_id"]
    for fold, sets in folds.items():
        cases = [case for videos in sets.values() for case in set(videos.values())]
        if repeated := sorted({case for case in cases if cases.count(case) > 1}):
            what = f"has the case {repeated[0]} in two sets of fold {fold}"
            raise DataError(folder, what, "correct its tables: a patient is in one set of a fold")
    return dict(sorted(folds.items()))


def kinds(root: Path) -> list[str]:
    return list(_folders(root))


def _folders(root: Path) -> dict[str, Path]:
    for base in (root, root / "GynSurg_Action_3sec"):
        folders = {kind: base / f"GynSurg_{kind}_dataset" for kind in KINDS}
        if existing := {kind: folder for kind, folder in folders.items() if folder.is_dir()}:
            return existing
    raise DataError(root, "contains no GynSurg_<kind>_dataset", "set 'root' to the folder GynSurg_Action_3sec")


def _clips(folder: Path) -> Mapping[str, Path]:
    return _clips_of(folder, _touched(folder))


@lru_cache(maxsize=16)
def _clips_of(folder: Path, stamp: int) -> Mapping[str, Path]:
    clips: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.mp4")):
        if path.name.startswith("."):
            continue
        stem = _clip_name(path.name)
        if stem in clips:
            raise DataError(path, f"has the name of {clips[stem]}", "rename one of them, and in the tables")
        clips[stem] = path
    return {stem: clips[stem] for stem in sorted(clips, key=natural_order)}


def _touched(folder: Path) -> int:
    """Return the last change of a folder or a folder directly below it, in ns; DataError if it is no folder."""
    if not folder.is_dir():
        raise DataError(folder, "is no folder", "correct the path")
    return max(changed(path) for path in (folder, *folder.iterdir()) if path.is_dir())


def _clip_name(file: str) -> str:
    return Path(unquote(file)).stem.replace(":", "_")


@lru_cache(maxsize=16)
def _tables(folder: Path, stamp: int, pattern: str) -> list[Path]:
    return [path for path in sorted(folder.rglob(pattern)) if not path.name.startswith(".")]


def _stamped(tables: list[Path]) -> tuple[tuple[Path, int], ...]:
    return tuple((path, changed(path)) for path in tables)


@lru_cache(maxsize=16)
def _joined(folder: Path, tables: tuple[tuple[Path, int], ...]) -> tuple[list[dict[str, str]], Mapping[str, str]]:
    """Return the rows of tables, with clip names in `vids`, and the label of each clip; DataError if it has two."""
    lines = [line for path, _ in tables for line in records(path, columns=_COLUMNS)]
    rows = [{**line, "vids": _clip_name(line["vids"])} for line in lines]
    labels: dict[str, str] = {}
    for line in rows:
        if labels.setdefault(line["vids"], line["labels"]) != line["labels"]:
            what = f"labels the clip {line['vids']} both {labels[line['vids']]!r} and {line['labels']!r}"
            raise DataError(folder, what, "correct its tables")
    return rows, labels


def _class(folder: Path, kind: str, label: str) -> int:
    """Return the class of a label: a number, or a name in any spacing."""
    names = LABELS[f"gynsurg_{kind}"]
    if label.isdecimal() and int(label) < len(names):
        return int(label)
    *known, plain = [re.sub(r"[^a-z]|and", "", name.lower()) for name in (*names, label)]
    if plain in known:
        return known.index(plain)
    raise DataError(folder, f"has the label {label!r}", f"write 0 to {len(names) - 1} or one of {', '.join(names)}")
