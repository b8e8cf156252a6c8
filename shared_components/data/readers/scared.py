"""SCARED, porcine abdomen: depth by structured light, exported by scared_toolkit (Allan et al., arXiv 2101.01133).

    root[/training|testing]/dataset_N/keyframe_M/data/left_undistorted/000012.png
    root[/training|testing]/dataset_N/keyframe_M/data/depthmap_undistorted/000012.png   uint16, 256 or 128 per mm
    root[/training|testing]/dataset_N/keyframe_M/left_depth_map.tiff        keyframe's X, Y, Z in mm

A video is named dataset_N/keyframe_M. Depth 0 is unknown. Some exports have 128 values per millimetre: the reader
compares the first depth map with the keyframe's own, if that is there, and otherwise takes 256.

Depth may be there for every n-th image only; the images between are shown by clips. That both files of a frame have one
number, and that videos have 25 frames a second, is assumed: no source confirms it (`rate` in site.yaml corrects the
second).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from shared_components.data.files import (
    DEPTH_SCALE,
    DataError,
    by_number,
    decode,
    natural_order,
    read_depth,
    spacing,
    video_folders,
    with_number,
)
from shared_components.data.readers import Listing, Reader, paired
from shared_components.data.tables import changed

_SCALES = (256, 128)  # values per millimetre
_ALIKE = 1.3  # medians of two depth maps of one scene differ by less


class Scared(Reader):
    TARGETS = ("depth",)
    RATE = 25.0

    def folders(self, root: Path) -> dict[str, Path]:
        datasets = video_folders(root, lambda path: path.name.startswith("dataset"))
        return {
            f"{name}/{keyframe.name}": keyframe / "data"
            for name, folder in datasets.items()
            for keyframe in sorted(folder.glob("keyframe*"), key=lambda path: natural_order(path.name))
            if (keyframe / "data" / "left_undistorted").is_dir()
        }

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        found = self.images(root, video)
        depths = by_number(folder / "depthmap_undistorted", "*.png")
        if not depths:
            raise DataError(folder / "depthmap_undistorted", "holds no depth maps", "export them or take the video out")
        known = next(iter(depths.values()))
        expected = depths.keys() | _without_depth(found, depths)
        return paired(
            "depth",
            {number: path for number, path in found.items() if number in expected},
            depths,
            image=lambda number: folder / "left_undistorted" / with_number(known, number).name,
            file=lambda number: with_number(known, number),
        )

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return by_number(self.folders(root)[video] / "left_undistorted", "*.png")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        keyframe = path.parents[2] / "left_depth_map.tiff"
        if not keyframe.is_file():
            return read_depth(path)
        return read_depth(path) * _correction(path.parent, changed(path.parent), keyframe, changed(keyframe))


def _without_depth(found: dict[int, Path], depths: dict[int, Path]) -> set[int]:
    """Find the images whose depth is missing: those in step with the depth maps that are there."""
    step, first = spacing(depths), min(depths)
    return {number for number in found if step and (number - first) % step == 0} - depths.keys()


@lru_cache(maxsize=64)
def _correction(depths: Path, stamp: int, keyframe: Path, keyframe_stamp: int) -> np.float32:
    """Return what depth at `DEPTH_SCALE` is multiplied by, as the keyframe's depth map shows.

    Raises:
        DataError: the export has none of the known scales.
    """
    number, first = next(iter(by_number(depths, "*.png").items()))
    exported, true = read_depth(first), decode(keyframe)[1]
    z = true[..., 0] if true.ndim == 3 else true  # OpenCV gives X, Y, Z backwards
    known, expected = exported[exported > 0], z[np.isfinite(z) & (z > 0)]
    if number > 1 or not known.size or not expected.size:  # later frames show another scene
        return np.float32(1)
    factor = float(np.median(expected) / np.median(known))
    for scale in _SCALES:
        if 1 / _ALIKE < factor * scale / DEPTH_SCALE < _ALIKE:
            return np.float32(DEPTH_SCALE / scale)
    what = (
        f"has a depth of {np.median(known):.3g} mm in the middle, and {keyframe.name} of {np.median(expected):.3g} mm"
    )
    raise DataError(first, what, f"export it with {DEPTH_SCALE} values per millimetre")
