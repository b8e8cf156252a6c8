"""EndoVis 2018, robotic surgery: scene masks (Allan et al., arXiv 2001.11190).

    root[/miccai_challenge_release_N]/seq_N/left_frames/frame000.png
    root[/miccai_challenge_release_N]/seq_N/labels/frame000.png         colours, RGB or RGBA

Classes `scene` are the challenge's eleven classes in its order, shaft 1, clasper 2, wrist 3. Sites usually have
`parts`, shaft 1, wrist 2, clasper 3; tissue, threads, clamps, needles, suction and probes are background. There are two
frames per second, all labelled. The challenge left out frames with little motion, so that neighbours may be more than
half a second apart.
"""

from pathlib import Path

import numpy as np

from shared_components.data.files.images import files_by_number, map_colours, read_colours, video_folders
from shared_components.data.readers import Listing, Reader, paired

LABEL_COLOURS: dict[str, tuple[int, int, int]] = {
    "background-tissue": (0, 0, 0), "instrument-shaft": (0, 255, 0), "instrument-clasper": (0, 255, 255),
    "instrument-wrist": (125, 255, 12), "kidney-parenchyma": (255, 55, 0), "covered-kidney": (24, 55, 125),
    "thread": (187, 155, 25), "clamps": (0, 255, 125), "suturing-needle": (255, 255, 125),
    "suction-instrument": (123, 15, 175), "small-intestine": (124, 155, 5), "ultrasound-probe": (12, 255, 141),
}  # fmt: skip
"""Colour of each class of `scene`, by the challenge's names."""
_OF_COLOURS = {colour: place for place, colour in enumerate(LABEL_COLOURS.values())}


class EndoVis2018(Reader):
    CLASS_MAP = "scene"
    USUAL = "parts"
    RATE = 2.0

    def folders(self, root: Path) -> dict[str, Path]:
        return video_folders(root, lambda path: path.name.startswith("seq") and (path / "left_frames").is_dir())

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        return paired(
            "label", self.images(root, video), files_by_number(folder / "labels", "*.png"),
            image=lambda number: folder / "left_frames" / f"frame{number:03d}.png",
            file=lambda number: folder / "labels" / f"frame{number:03d}.png",
        )  # fmt: skip

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return files_by_number(self.folders(root)[video] / "left_frames", "*.png")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        allowed = "EndoVis 2018 has the twelve colours of its labels.json"
        return map_colours(read_colours(path), _OF_COLOURS, path=path, allowed=allowed)
