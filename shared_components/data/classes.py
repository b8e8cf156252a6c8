"""Map every data set's labels to common class names.

A class map is a tuple of class names; the index of a name is the canonical id of its pixels. Readers translate a data
set's ids or colours to canonical ids. The class maps of public data sets have names; a site may define its own classes.
"""

from collections.abc import Sequence

import numpy as np

from shared_components.data.triplets import NAMES

CLASS_MAPS: dict[str, tuple[str, ...]] = {
    "parts": ("background", "shaft", "wrist", "clasper"),
    "shaft_manipulator": ("background", "shaft", "manipulator"),
    "foreground": ("background", "instrument"),
    "scene": (
        "background", "shaft", "clasper", "wrist", "kidney parenchyma", "covered kidney", "thread", "clamps",
        "suturing needle", "suction instrument", "small intestine", "ultrasound probe",
    ),
    "hysterectomy": (
        "background", "tool 1 manipulator", "tool 1 shaft", "tool 2 manipulator", "tool 2 shaft", "tool 3 manipulator",
        "tool 3 shaft", "tool 4 manipulator", "tool 4 shaft", "uterus",
    ),
    "cholecseg8k": (
        "background", "abdominal wall", "liver", "gastrointestinal tract", "fat", "grasper", "connective tissue",
        "blood", "cystic duct", "L-hook", "gallbladder", "hepatic vein", "liver ligament",
    ),
    "cholecseg8k_merged": (
        "background", "abdominal wall", "liver", "gastrointestinal tract", "fat", "gallbladder", "misc", "instrument",
    ),
}  # fmt: skip

LABELS: dict[str, tuple[str, ...]] = {
    "triplets": NAMES,
    "cholecystectomy_phases": (
        "preparation", "calot-triangle-dissection", "clipping-and-cutting", "gallbladder-dissection",
        "gallbladder-packaging", "cleaning-and-coagulation", "gallbladder-extraction",
    ),
    "cholec80_tools": ("grasper", "bipolar", "hook", "scissors", "clipper", "irrigator", "specimen bag"),
    "gynsurg_action": ("coagulation", "needle passing", "rest", "suction/irrigation", "transection"),
    "gynsurg_bleeding": ("non-bleeding", "bleeding"),
    "gynsurg_smoke": ("non-smoke", "smoke"),
    "appendicitis_grades": ("normal", "oedema", "fibrin", "necrosis", "abscess", "diffuse-peritonitis"),
}  # fmt: skip
"""Names of labels without pixels, by number; they have no background."""

MERGES: dict[tuple[str, str], tuple[int, ...]] = {  # (finer map, coarser map): the new id of each old id
    ("parts", "shaft_manipulator"): (0, 1, 2, 2),
    ("parts", "foreground"): (0, 1, 1, 1),
    ("shaft_manipulator", "foreground"): (0, 1, 1),
    ("scene", "parts"): (0, 1, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0),
    ("scene", "shaft_manipulator"): (0, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0),
    ("scene", "foreground"): (0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
    ("hysterectomy", "shaft_manipulator"): (0, 2, 1, 2, 1, 2, 1, 2, 1, 0),
    ("hysterectomy", "foreground"): (0, 1, 1, 1, 1, 1, 1, 1, 1, 0),
    ("cholecseg8k", "cholecseg8k_merged"): (0, 1, 2, 3, 4, 7, 6, 6, 6, 7, 5, 6, 6),
    ("cholecseg8k", "foreground"): (0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0),
    ("cholecseg8k_merged", "foreground"): (0, 0, 0, 0, 0, 0, 0, 1),
}

SUCTION = 0
"""Canonical id of a suction and irrigation tool in "parts": background, because it has no wrist or clasper and EndoVis
2018 and SAR-RARP50 label it apart. (GraSP's masks of whole instruments include it.)"""
IGNORED = 255  # id of unlabelled pixels, which losses and scores ignore


def name_of(classes: Sequence[str]) -> str:
    """Return a class map's name; for other classes, a list of their names: grasper, suction."""
    names = [name for name, known in (CLASS_MAPS | LABELS).items() if known == tuple(classes)]
    return names[0] if names else ", ".join(classes[1:])


def readable_as(source: Sequence[str]) -> list[tuple[str, ...]]:
    """List the class maps that masks of ``source`` can be read as, ``source`` first."""
    coarser = (CLASS_MAPS[target] for finer, target in MERGES if CLASS_MAPS[finer] == tuple(source))
    return [tuple(source), *coarser]


def merge_classes(mask: np.ndarray, source: Sequence[str], target: Sequence[str]) -> np.ndarray:
    """Convert a mask, uint8 (H, W) of ids and `IGNORED`, to coarser classes; ValueError if they are not coarser."""
    if tuple(source) == tuple(target):
        return mask
    if (ids := coarser_ids(source, target)) is None:
        raise ValueError(f"labels of {name_of(source)} cannot be read as {name_of(target)}")
    table = np.full(256, IGNORED, dtype=np.uint8)
    table[: len(ids)] = ids
    return table[mask]


def coarser_ids(names: Sequence[str], target: Sequence[str]) -> tuple[int, ...] | None:
    """Return the id of each class in a coarser class map; None if ``target`` is not coarser."""
    if tuple(names) == tuple(target):
        return tuple(range(len(names)))
    maps = {classes: name for name, classes in CLASS_MAPS.items()}
    return MERGES.get((maps.get(tuple(names), ""), maps.get(tuple(target), "")))
