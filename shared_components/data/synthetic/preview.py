"""Contact sheets: frames beside their masks or their depth, one row per site, for a person to look at."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shared_components.common.drawing.palette import DEPTH, class_entries
from shared_components.common.drawing.pictures import captioned, coloured, legend, overlay, scale_bar, side_by_side
from shared_components.data.classes import CLASS_MAPS
from shared_components.data.synthetic.layouts import write_png
from shared_components.data.synthetic.scene import SceneFrame

Array = np.ndarray

DEPTH_RANGE = (25.0, 100.0)
"""mm shown as the nearest and as the farthest; the scenes lie within."""


def tile(frame: SceneFrame, task: str) -> Array:
    """Return what stands beside a frame's image: what a site of this task may learn about it."""
    if task == "segmentation":
        return overlay(frame.image, frame.parts)
    if task == "depth":
        return coloured(frame.depth, frame.depth > 0, DEPTH_RANGE, DEPTH)
    return np.full_like(frame.image, 255)


def contact_sheet(sites: Mapping[str, tuple[str, Sequence[SceneFrame]]]) -> Array:
    """Return one RGB picture: a row per site, each frame followed by its labels, depth, or nothing; then legends.

    Args:
        sites: title of the row -> task and frames, all of one size and equally many per site.
    """
    rows = [
        captioned(side_by_side([picture for f in frames for picture in (f.image, tile(f, task))]), title)
        for title, (task, frames) in sites.items()
    ]
    width, tasks = rows[0].shape[1], {task for task, _ in sites.values()}
    if "segmentation" in tasks:
        rows.append(legend(class_entries(CLASS_MAPS["parts"]), width=width))
    if "depth" in tasks:
        rows.append(scale_bar(DEPTH_RANGE, DEPTH, width))
    return np.vstack(rows)


def write_contact_sheet(path: Path, sites: Mapping[str, tuple[str, Sequence[SceneFrame]]]) -> None:
    """Write the contact sheet of `sites` as a PNG."""
    write_png(Path(path), contact_sheet(sites))
