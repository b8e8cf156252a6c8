"""Give every dataset's labels one meaning.

A class map is a tuple of class names; a pixel's canonical id is the name's place in it. Readers translate
the ids or colours of their dataset to canonical ids, so that nothing above them knows a dataset's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CLASS_MAPS: dict[str, tuple[str, ...]] = {
    "parts": ("background", "shaft", "wrist", "clasper"),
    "shaft_manipulator": ("background", "shaft", "manipulator"),
    "foreground": ("background", "instrument"),
}

# A finer map can be read as a coarser one: (from, to) -> the new id of each old id.
MERGES: dict[tuple[str, str], tuple[int, ...]] = {
    ("parts", "shaft_manipulator"): (0, 1, 2, 2),
    ("parts", "foreground"): (0, 1, 1, 1),
    ("shaft_manipulator", "foreground"): (0, 1, 1),
}


def readable_as(source: str) -> list[str]:
    """List the class maps that masks of one can be read as, itself first."""
    return [source, *(target for finer, target in MERGES if finer == source)]


def merge_classes(mask: np.ndarray, source: str, target: str) -> np.ndarray:
    """Read a mask of one class map as another, coarser one.

    Args:
        mask: uint8 (H, W), ids of the class map `source`.

    Returns:
        uint8 (H, W), ids of the class map `target`.

    Raises:
        KeyError: `source` cannot be read as `target`.
    """
    if source == target:
        return mask
    return np.array(MERGES[source, target], dtype=np.uint8)[mask]


def coarser_ids(names: Sequence[str], target: Sequence[str]) -> tuple[int, ...] | None:
    """Return the place of every class among other, coarser classes; None where they cannot be read so.

    Args:
        names: class names of one class map by id, and of another one, `target`.
    """
    if tuple(names) == tuple(target):
        return tuple(range(len(names)))
    maps = {classes: name for name, classes in CLASS_MAPS.items()}
    return MERGES.get((maps.get(tuple(names), ""), maps.get(tuple(target), "")))
