"""Give every dataset's labels one meaning.

A class map is a tuple of class names; a pixel's canonical id is the name's place in it. Readers translate
the ids or colours of their dataset to canonical ids, so that nothing above them knows a dataset's own.
"""

from __future__ import annotations

import numpy as np

CLASS_MAPS: dict[str, tuple[str, ...]] = {
    "parts": ("background", "shaft", "wrist", "clasper"),
    "shaft_manipulator": ("background", "shaft", "manipulator"),
}

# A finer map can be read as a coarser one: (from, to) -> the new id of each old id.
MERGES: dict[tuple[str, str], tuple[int, ...]] = {
    ("parts", "shaft_manipulator"): (0, 1, 2, 2),
}


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
