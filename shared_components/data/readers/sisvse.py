"""Sisvse, real and simulated gastrectomy: part masks (Yoon et al., MICCAI 2022, doi 10.1007/978-3-031-16449-1_53).

    root/semantic_masks/manual_syn/CadiereForceps_close_2021-09-27-14-20-30_0.png      ids
    root/images/manual_syn/CadiereForceps_close_2021-09-27-14-20-30_0.jpg
    root/images/real/R001_ch1_video_01_00-10-37-20.jpg                                 images of all real_* sets

There are no videos. A "video" is a set of masks with the name of its folder: manual_syn, domain_random_syn,
sean_spade_translation/sean/manual_syn, ..., real_train_1 to 3, real_val_1 to 3. A frame's number is its position among
the set's names in natural order. Frames have no times: clips need `history: false`, which repeats the image. The real
sets are three splits of the same images, so that only real_train_k and real_val_k with the same k share no image. The
images of a real set follow from its masks, so a missing mask is not noticed there.

A mask's value is the index of its class in `_NAMES`, as published code reads it. Heads are claspers, bodies are shafts.
Background are tissue and materials, SuctionIrrigation (`classes.SUCTION`), and TheOther_Instruments, whose parts are
not labelled, as in EndoVis 2017.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from shared_components.data.files.classes import SUCTION
from shared_components.data.files.images import DataError, natural_order
from shared_components.data.readers import Listing, Reader

_NAMES = (
    "Background", "HarmonicAce_Head", "HarmonicAce_Body",
    "MarylandBipolarForceps_Head", "MarylandBipolarForceps_Wrist", "MarylandBipolarForceps_Body",
    "CadiereForceps_Head", "CadiereForceps_Wrist", "CadiereForceps_Body",
    "CurvedAtraumaticGrasper_Head", "CurvedAtraumaticGrasper_Body", "Stapler_Head", "Stapler_Body",
    "MediumLargeClipApplier_Head", "MediumLargeClipApplier_Wrist", "MediumLargeClipApplier_Body",
    "SmallClipApplier_Head", "SmallClipApplier_Wrist", "SmallClipApplier_Body",
    "SuctionIrrigation", "Needle", "Endotip", "Specimenbag", "DrainTube",
    "Liver", "Stomach", "Pancreas", "Spleen", "Gallbladder", "Gauze", "TheOther_Instruments", "TheOther_Tissues",
)  # fmt: skip
_CANONICAL = {"Body": 1, "Wrist": 2, "Head": 3, "SuctionIrrigation": SUCTION}
_REAL = "real"  # folder of all real images, which is no set


class Sisvse(Reader):
    CLASS_MAP = "parts"
    IDS = MappingProxyType({value: _CANONICAL.get(name.split("_")[-1], 0) for value, name in enumerate(_NAMES)})
    ALLOWED = "Sisvse classes are 0 to 31"

    def videos(self, root: Path) -> list[str]:
        sets = {*_folders(root / "semantic_masks", ".png"), *_folders(root / "images", ".jpg")} - {_REAL}
        if not sets:
            what = "contains no sets of images and masks (images/, semantic_masks/)"
            raise DataError(root, what, "set 'root' to the folder miccai2022_sisvse_dataset")
        return sorted(sets, key=natural_order)

    def frames(self, root: Path, video: str) -> Listing:
        masks = root / "semantic_masks" / video
        return [
            (number, _images(root, video) / f"{name}.jpg", {"label": (masks / f"{name}.png",)})
            for number, name in enumerate(_names(root, video))
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        return {number: image for number, image, _ in self.frames(root, video) if image.is_file()}


def _images(root: Path, video: str) -> Path:
    return root / "images" / (_REAL if _is_real(video) else video)


def _is_real(video: str) -> bool:
    return video.startswith(f"{_REAL}_")


def _names(root: Path, video: str) -> list[str]:
    """List the names of a set's images, without ending; real images without a mask are not in the set."""
    names = _stems(root / "semantic_masks" / video, ".png")
    if not _is_real(video):
        names |= _stems(_images(root, video), ".jpg")
    return sorted(names, key=natural_order)


def _stems(folder: Path, ending: str) -> set[str]:
    return {path.stem for path in folder.glob(f"*{ending}") if not path.name.startswith(".")}


def _folders(base: Path, ending: str) -> Iterator[str]:
    """Yield the folders below `base` with files of this ending, as relative paths."""
    for folder, _, files in os.walk(base):
        if Path(folder) != base and any(name.endswith(ending) for name in files):
            yield Path(folder).relative_to(base).as_posix()
