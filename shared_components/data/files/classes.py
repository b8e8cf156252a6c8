"""Map every data set's labels to common class names.

A class map is a tuple of class names; the index of a name is the canonical id of its pixels. Readers translate a data
set's ids or colours to canonical ids. The class maps of public data sets have names; a site may define its own classes.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from shared_components.common.plain_yaml import beside, read_own_yaml
from shared_components.data.files.triplets import NAMES

_TABLES = read_own_yaml(beside(__file__, "classes.yaml"))
CLASS_MAPS = msgspec.convert(_TABLES["class_maps"], dict[str, tuple[str, ...]])
LABELS = {"triplets": NAMES} | msgspec.convert(_TABLES["labels"], dict[str, tuple[str, ...]])
"""Names of labels without pixels, by number; they have no background."""
MERGES: dict[tuple[str, str], tuple[int, ...]] = {
    (finer, coarser): tuple(ids) for finer, merges in _TABLES["merges"].items() for coarser, ids in merges.items()
}
"""The new id of each old id, by (finer map, coarser map)."""
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
    return [tuple(source), *(CLASS_MAPS[target] for finer, target in MERGES if CLASS_MAPS[finer] == tuple(source))]


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
