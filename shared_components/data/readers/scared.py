"""SCARED, porcine abdomen: depth by structured light, exported by scared_toolkit (Allan et al., arXiv 2101.01133).

    root[/training|testing]/dataset_N/keyframe_M/data/left_undistorted/000012.png
    root[/training|testing]/dataset_N/keyframe_M/data/depthmap_undistorted/000012.png   uint16, 256 or 128 per mm
    root[/training|testing]/dataset_N/keyframe_M/left_depth_map.tiff        keyframe's X, Y, Z in mm

A video is named dataset_N/keyframe_M. Depth 0 is unknown. Some exports have 128 values per millimetre: the reader
compares the first depth map with the keyframe's depth map; without it, the scale is 256.

Only every n-th image may have depth; clips show the images between. Two assumptions have no confirmed source: both
files of a frame have the same number, and videos have 25 frames per second (`rate` in site.yaml corrects it).
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from shared_components.data.files.images import (
    DEPTH_SCALE,
    DataError,
    decode,
    files_by_number,
    natural_order,
    read_depth,
    replace_frame_number,
    spacing,
    video_folders,
)
from shared_components.data.files.tables import changed
from shared_components.data.readers import Listing, Reader, paired

_SCALES = (256, 128)  # values per millimetre
_ALIKE = 1.3  # maximum ratio of the medians of two depth maps of a scene


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
        folder, images = self.folders(root)[video], self.images(root, video)
        depths = files_by_number(folder / "depthmap_undistorted", "*.png")
        if not depths:
            raise DataError(folder / "depthmap_undistorted", "has no depth maps", "export them or take the video out")
        step, start = spacing(depths), min(depths)
        # images in step with the depth maps should have depth
        images = {n: path for n, path in images.items() if n in depths or (step and (n - start) % step == 0)}
        example = next(iter(depths.values()))
        return paired(
            "depth", images, depths,
            image=lambda number: folder / "left_undistorted" / replace_frame_number(example, number).name,
            file=lambda number: replace_frame_number(example, number),
        )  # fmt: skip

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return files_by_number(self.folders(root)[video] / "left_undistorted", "*.png")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        keyframe = path.parents[2] / "left_depth_map.tiff"
        if not keyframe.is_file():
            return read_depth(path)
        return read_depth(path) * _correction(path.parent, changed(path.parent), keyframe, changed(keyframe))


@lru_cache(maxsize=64)
def _correction(depths: Path, stamp: int, keyframe: Path, keyframe_stamp: int) -> np.float32:
    """Return the factor that corrects depth at `DEPTH_SCALE`, by the keyframe; DataError for an unknown scale."""
    number, first = next(iter(files_by_number(depths, "*.png").items()))
    exported, true = read_depth(first), decode(keyframe)[1]
    z = true[..., 0] if true.ndim == 3 else true  # OpenCV returns X, Y, Z in reverse order
    known, expected = exported[exported > 0], z[np.isfinite(z) & (z > 0)]
    if number > 1 or not known.size or not expected.size:  # later frames show another scene
        return np.float32(1)
    factor = float(np.median(expected) / np.median(known))
    for scale in _SCALES:
        if 1 / _ALIKE < factor * scale / DEPTH_SCALE < _ALIKE:
            return np.float32(DEPTH_SCALE / scale)
    what = f"has a median depth of {np.median(known):.3g} mm, and {keyframe.name} of {np.median(expected):.3g} mm"
    raise DataError(first, what, f"export it with {DEPTH_SCALE} values per millimetre")
