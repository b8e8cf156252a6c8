"""EndoVis 2015, rigid instruments: training set of four colorectal surgeries.

    root/OPn/Raw/img_01_raw.png                       (or .jpg)
    root/OPn/Masks/img_01_class.png                   (or Masks_class/)

Masks contain 0 background, 160 shaft, 70 manipulator (wrist and claspers). The *_instrument.png files of instrument
instances are not read. The official rule is to leave one surgery out. The frame rate is unknown.
"""

from pathlib import Path
from types import MappingProxyType

from shared_components.data.files.images import files_by_number, video_folders
from shared_components.data.readers import Listing, Reader, paired


class EndoVis2015Rigid(Reader):
    CLASS_MAP = "shaft_manipulator"
    IDS = MappingProxyType({0: 0, 160: 1, 70: 2})
    ALLOWED = "EndoVis 2015 rigid classes are 0, 160 shaft, 70 manipulator"

    def folders(self, root: Path) -> dict[str, Path]:
        return video_folders(root, lambda path: (path / "Raw").is_dir())

    def frames(self, root: Path, video: str) -> Listing:
        folder = self.folders(root)[video]
        mask_folder = folder / "Masks_class" if (folder / "Masks_class").is_dir() else folder / "Masks"
        return paired(
            "label", self.images(root, video), files_by_number(mask_folder, "*_class.png"),
            image=lambda number: folder / "Raw" / f"img_{number:02d}_raw.png",
            file=lambda number: mask_folder / f"img_{number:02d}_class.png",
        )  # fmt: skip

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return files_by_number(self.folders(root)[video] / "Raw", "*_raw.png", "*_raw.jpg")
