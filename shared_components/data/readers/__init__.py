"""One reader per public dataset, found by listing this folder.

A file holds one `Reader`. It knows the dataset's layout on disk, its ids or colours
and its crop, and nothing of sites or splits. A new dataset is one new file here.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from shared_components.data.files import map_ids, read_ids, read_rgb

Targets = Mapping[str, tuple[Path, ...]]
"""The files of each target of one frame, by the target's name."""

Listing = list[tuple[int, Path, Targets]]


class Reader(ABC):
    """What is known of a dataset: its layout on disk, its ids and its crop."""

    TARGETS: tuple[str, ...] = ("label",)
    """What the dataset can give beside its images, by the names of `shared_components.data.targets.FORMS`."""

    CLASS_MAP: str = ""
    """Name of the class map (`shared_components.data.classes`) of its "label"; empty where it has none."""

    LABELS: Mapping[str, str] = MappingProxyType({})
    """Of a target without pixels the name of its labels (`shared_components.data.classes.LABELS`), the usual first."""

    USUAL: str = ""
    """Name of a coarser class map, that of a site which names none; empty: the map is `CLASS_MAP`."""

    RATE: float | None = None
    """Frame numbers per second of video; None where no fixed rate is known."""

    IDS: Mapping[int, int] = MappingProxyType({})
    """What each value of a mask is in the class map."""

    ALLOWED: str = ""
    """What a mask may hold, in words, for its refusal."""

    def folders(self, root: Path) -> dict[str, Path]:
        """Find the folder of every video under a root, in natural order of their names."""
        raise NotImplementedError(f"{type(self).__name__} has no folder of a video; override `videos`")

    def videos(self, root: Path) -> list[str]:
        """List the names of the videos under a root, in natural order: by default, those of `folders`."""
        return list(self.folders(root))

    @abstractmethod
    def frames(self, root: Path, video: str) -> Listing:
        """List (number, image, files by target) in time order, for every frame that has or misses a target.

        The files need not all exist: a missing one is listed under the name it should have.
        """

    @abstractmethod
    def images(self, root: Path, video: str) -> dict[int, Path]:
        """List every image on disk by its number, with targets or without; needs no targets' files."""

    def targets_under(self, root: Path) -> tuple[str, ...]:
        """Return the targets that this copy of the dataset has, by default all `TARGETS`; copies may differ."""
        return self.TARGETS

    def native_targets(self, video: str) -> bool:
        """Say whether the targets of a video may have another size than its images."""
        return False

    def read_image(self, path: Path) -> np.ndarray:
        """Read one frame, of an image file or of a video (video.mp4/000012), as uint8 (H, W, 3) RGB.

        A reader whose dataset asks for it crops it.
        """
        if path.name.isdecimal() and path.parent.is_file():
            from shared_components.data.video import read_frame  # late: few datasets are videos

            return read_frame(path.parent, int(path.name))
        return read_rgb(path)

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        """Read one frame's target, cropped alike: "label" as uint8 (H, W) canonical ids, "depth" as float32 mm.

        A vector is uint8 (N,), a scalar int64 (); their file may be a row of a table (`data.tables`).

        By default it is one mask, whose values are `IDS`.
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
    """List every number that has an image or a file of the target; one of the two may be missing.

    Args:
        image, file: name the one that should be there, by its number.
    """
    return [
        (number, images.get(number) or image(number), {target: (files.get(number) or file(number),)})
        for number in sorted(images.keys() | files.keys())
    ]


def reader_names() -> list[str]:
    """List the datasets that can be read."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@cache
def find_reader(dataset: str) -> Reader:
    """Return the reader of a dataset named in `reader_names`."""
    if dataset not in reader_names():
        raise KeyError(f"no reader for dataset {dataset!r}; there are {', '.join(reader_names())}")
    module = importlib.import_module(f"{__name__}.{dataset}")
    (own,) = (
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Reader) and one.__module__ == module.__name__
    )
    return own()
