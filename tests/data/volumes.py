"""Read and write whole label volumes; the library works frame by frame."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.data.files.nifti import LabelWriter, label_frames


def read_labels(path: Path, **options: Any) -> np.ndarray:
    """Return (T, H, W), uint8, or uint16 where an id is above 255."""
    labels = np.stack(list(label_frames(path, **options)))
    return labels.astype(np.uint8) if labels.max() <= 255 else labels


def write_labels(path: Path, masks: Iterable[np.ndarray]) -> None:
    with LabelWriter(path) as writer:
        for mask in masks:
            writer.add(mask)
