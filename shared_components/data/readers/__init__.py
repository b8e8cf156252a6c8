"""One reader per public dataset, found by listing this folder.

A reader is a module with the members of `Reader`. It knows the dataset's layout on disk, its ids or colours
and its crop, and nothing of sites or splits. A new dataset is one new file here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import numpy as np

Targets = Mapping[str, tuple[Path, ...]]
"""The files of each target of one frame, by the target's name."""

Listing = list[tuple[int, Path, Targets]]


class Reader(Protocol):
    """What the module of a dataset offers."""

    TARGETS: tuple[str, ...]
    """What the dataset can give beside its images: "label" (a mask of canonical ids), "depth"."""

    CLASS_MAP: str
    """Name of the class map (`shared_components.data.classes`) of its "label"; empty where it has none."""

    RATE: float | None
    """Frame numbers per second of video; None where no fixed rate is known."""

    def videos(self, root: Path) -> list[str]:
        """List the names of the videos under a root, in natural order."""

    def frames(self, root: Path, video: str) -> Listing:
        """List (number, image, files by target) in time order, for every frame that has or misses a target.

        The files need not all exist: a missing one is listed under the name it should have.
        """

    def images(self, root: Path, video: str) -> dict[int, Path]:
        """List every image on disk by its number, with targets or without; needs no targets' files."""

    def native_targets(self, video: str) -> bool:
        """Say whether the targets of a video may have another size than its images."""

    def read_image(self, path: Path) -> np.ndarray:
        """Read one frame as uint8 (H, W, 3) RGB, cropped as the dataset asks."""

    def read_target(self, name: str, files: tuple[Path, ...]) -> np.ndarray:
        """Read one frame's target, cropped alike: "label" as uint8 (H, W) canonical ids, "depth" as float32 mm."""


def reader_names() -> list[str]:
    """List the datasets that can be read."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_reader(dataset: str) -> Reader:
    """Return the reader of a dataset named in `reader_names`."""
    if dataset not in reader_names():
        raise KeyError(f"no reader for dataset {dataset!r}; there are {', '.join(reader_names())}")
    return cast(Reader, importlib.import_module(f"{__name__}.{dataset}"))
