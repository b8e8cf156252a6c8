"""Contact sheets: frames beside their masks or their depth, one row per site, for a person to look at."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from shared_components.data.synthetic.layouts import write_png
from shared_components.data.synthetic.scene import SceneFrame

Array = np.ndarray

COLOURS = np.array([[0, 0, 0], [0, 200, 80], [0, 200, 255], [255, 140, 0]], np.uint8)
"""RGB of background, shaft, wrist and clasper."""
DEPTH_RANGE = (25.0, 100.0)
"""mm shown as red and as dark blue; the scenes lie within."""
_MARGIN = 18


def overlay(image: Array, parts: Array) -> Array:
    """Return the image (H, W, 3) with its parts (H, W) tinted."""
    tinted = cv2.addWeighted(image, 0.45, COLOURS[parts], 0.55, 0)
    return np.where(parts[..., None] > 0, tinted, image)


def depth_colours(depth: Array) -> Array:
    """Return depth (H, W) in mm as RGB: near is warm, far is cold, unknown is black."""
    near, far = DEPTH_RANGE
    level = np.clip((far - depth) / (far - near), 0, 1)
    colours = cv2.applyColorMap((255 * level).astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]
    return np.where(depth[..., None] > 0, colours, 0).astype(np.uint8)


def tile(frame: SceneFrame, task: str) -> Array:
    """Return what stands beside a frame's image: what a site of this task may learn about it."""
    if task == "segmentation":
        return overlay(frame.image, frame.parts)
    return depth_colours(frame.depth) if task == "depth" else np.full_like(frame.image, 255)


def contact_sheet(sites: Mapping[str, tuple[str, Sequence[SceneFrame]]]) -> Array:
    """Return one RGB picture: a row per site, each frame followed by its labels, depth, or nothing.

    Args:
        sites: title of the row -> task and frames, all of one size and equally many per site.
    """
    rows = []
    for title, (task, frames) in sites.items():
        row = np.hstack([picture for f in frames for picture in (f.image, tile(f, task))])
        strip = np.full((_MARGIN, row.shape[1], 3), 255, np.uint8)
        cv2.putText(strip, title, (4, 13), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA)
        rows += [strip, row]
    return np.vstack(rows)


def write_contact_sheet(path: Path, sites: Mapping[str, tuple[str, Sequence[SceneFrame]]]) -> None:
    """Write the contact sheet of `sites` as a PNG."""
    write_png(Path(path), contact_sheet(sites))
