"""Contact sheets: frames beside their masks, one row per site, for a person to look at."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from shared_components.data.synthetic.layouts import write_png
from shared_components.data.synthetic.scene import SceneFrame

Array = np.ndarray

COLOURS = np.array([[0, 0, 0], [0, 200, 80], [0, 200, 255], [255, 140, 0]], np.uint8)
"""RGB of background, shaft, wrist and clasper."""
_MARGIN = 18


def overlay(image: Array, parts: Array) -> Array:
    """Return the image (H, W, 3) with its parts (H, W) tinted."""
    tinted = cv2.addWeighted(image, 0.45, COLOURS[parts], 0.55, 0)
    return np.where(parts[..., None] > 0, tinted, image)


def contact_sheet(sites: Mapping[str, Sequence[SceneFrame]]) -> Array:
    """Return one RGB picture: a row per site, each frame followed by its overlay.

    Args:
        sites: title of the row -> frames, all of one size and equally many per site.
    """
    rows = []
    for title, frames in sites.items():
        row = np.hstack([tile for f in frames for tile in (f.image, overlay(f.image, f.parts))])
        strip = np.full((_MARGIN, row.shape[1], 3), 255, np.uint8)
        cv2.putText(strip, title, (4, 13), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA)
        rows += [strip, row]
    return np.vstack(rows)


def write_contact_sheet(path: Path, sites: Mapping[str, Sequence[SceneFrame]]) -> None:
    """Write the contact sheet of `sites` as a PNG."""
    write_png(Path(path), contact_sheet(sites))
