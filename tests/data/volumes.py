"""Whole label volumes at once, for tests: the library reads and writes them frame by frame."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.data.nifti import LabelWriter, label_frames


def read_labels(path: Path, **asked: Any) -> np.ndarray:
    """Return (T, H, W), uint8, or uint16 where an id is above 255."""
    found = np.stack(list(label_frames(path, **asked)))
    return found.astype(np.uint8) if found.max() <= 255 else found


def write_labels(path: Path, masks: Iterable[np.ndarray]) -> None:
    """Write the masks of a video, (H, W) each, as one volume."""
    with LabelWriter(path) as writer:
        for mask in masks:
            writer.add(mask)
