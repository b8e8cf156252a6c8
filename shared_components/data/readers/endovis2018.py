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

from shared_components.data.files import files_by_number, map_colours, read_colours, video_folders
from shared_components.data.readers import Listing, Reader, paired

_SCENE_COLOURS: tuple[tuple[int, int, int], ...] = (
    (0, 0, 0),  # background tissue
    (0, 255, 0),  # instrument shaft
    (0, 255, 255),  # instrument clasper
    (125, 255, 12),  # instrument wrist
    (255, 55, 0),  # kidney parenchyma
    (24, 55, 125),  # covered kidney
    (187, 155, 25),  # thread
    (0, 255, 125),  # clamps
    (255, 255, 125),  # suturing needle
    (123, 15, 175),  # suction instrument
    (124, 155, 5),  # small intestine
    (12, 255, 141),  # ultrasound probe
)
_OF_COLOURS = {colour: place for place, colour in enumerate(_SCENE_COLOURS)}


class EndoVis2018(Reader):
    CLASS_MAP = "scene"
    USUAL = "parts"
    RATE = 2.0

    def folders(self, root: Path) -> dict[str, Path]:
        return video_folders(root, lambda path: path.name.startswith("seq") and (path / "left_frames").is_dir())

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        return paired(
            "label",
            self.images(root, video),
            files_by_number(folder / "labels", "*.png"),
            image=lambda number: folder / "left_frames" / f"frame{number:03d}.png",
            file=lambda number: folder / "labels" / f"frame{number:03d}.png",
        )

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return files_by_number(self.folders(root)[video] / "left_frames", "*.png")

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        (path,) = files
        allowed = "EndoVis 2018 has the twelve colours of its labels.json"
        return map_colours(read_colours(path), _OF_COLOURS, path=path, allowed=allowed)
