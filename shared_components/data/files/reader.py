"""Interface of dataset readers: the base class, and the list of a video's frames."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from shared_components.data.files.images import map_ids, read_ids, read_rgb

Targets = Mapping[str, tuple[Path, ...]]
"""The files of each target of a frame, by the target's name."""
Listing = list[tuple[int, Path, Targets]]
"""(frame number, image, files by target) of each frame."""


class Reader(ABC):
    """Reader of a dataset: its layout on disk, its ids and its crop."""

    TARGETS: tuple[str, ...] = ("label",)
    """Possible targets, by the names of `shared_components.data.targets.FORMS`."""
    CLASS_MAP: str = ""
    """Class map (`shared_components.data.files.classes`) of the target "label"; "" without this target."""
    LABELS: Mapping[str, str] = MappingProxyType({})
    """Label names (`shared_components.data.files.classes.LABELS`) of targets without pixels, the usual target first."""
    USUAL: str = ""
    """Coarser class map of sites without `classes`; "": `CLASS_MAP`."""
    RATE: float | None = None
    """Frame numbers per second of video; None if the dataset has no fixed rate."""
    IDS: Mapping[int, int] = MappingProxyType({})
    """Canonical id of each mask value."""
    ALLOWED: str = ""
    """Allowed mask values in words, for the error message."""

    def folders(self, root: Path) -> dict[str, Path]:
        """Return the folder of each video, in natural order of the names."""
        raise NotImplementedError(f"{type(self).__name__} has no folder of a video; override `videos`")

    def videos(self, root: Path) -> list[str]:
        """List the names of the videos, in natural order; default: the names in `folders`."""
        return list(self.folders(root))

    @abstractmethod
    def frames(self, root: Path, video: str) -> Listing:
        """List all frames that have or should have a target, in time order; missing files have their expected name."""

    @abstractmethod
    def images(self, root: Path, video: str) -> dict[int, Path]:
        """Return all existing images by number, with targets or without; files of targets are not needed."""

    def targets_under(self, root: Path) -> tuple[str, ...]:
        """Return the targets of a copy of the dataset; default: all `TARGETS`."""
        return self.TARGETS

    def native_targets(self, video: str) -> bool:
        """Return whether a video's targets may have another size than its images."""
        return False

    def read_image(self, path: Path) -> np.ndarray:
        """Read a frame of an image file or a video (video.mp4/000012) as uint8 (H, W, 3) RGB, cropped if necessary."""
        if path.name.isdecimal() and path.parent.is_file():
            from shared_components.data.files.video import read_frame  # late: few datasets are videos

            return read_frame(path.parent, int(path.name))
        return read_rgb(path)

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        """Read a frame's target, cropped like the image; default: a mask with the values `IDS`.

        "label" is uint8 (H, W) canonical ids, "depth" float32 (H, W) mm, a vector uint8 (N,), a scalar int64 (). The
        file of a vector or scalar may be a row of a table (`data.tables`).
        """
        (path,) = files
        return map_ids(read_ids(path), self.IDS, path=path, allowed=self.ALLOWED)


def paired(
    target: str,
    images: Mapping[int, Path],
    files: Mapping[int, Path],
    *,
    image: Callable[[int], Path],
    file: Callable[[int], Path],
) -> Listing:
    """List every number that has an image or a target file; `image` and `file` name a missing file by its number."""
    return [
        (number, images.get(number) or image(number), {target: (files.get(number) or file(number),)})
        for number in sorted(images.keys() | files.keys())
    ]
