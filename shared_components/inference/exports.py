"""Choose the exports of a prediction, and protect files that a person has corrected from being replaced."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np

from shared_components.common.drawing.palette import RGB, colour
from shared_components.core.evaluation import write_picture
from shared_components.core.shipped_weights import sha256_of
from shared_components.inference import EXPORTS, InferenceError
from shared_components.inference.frames import FrameStream, Shot

_HASHES, _NIFTI_HASHES = "exports", "labels"  # keys of the record; version 0.1.0 wrote only the second
_LARGE = (".nii", ".nrrd", ".png")  # endings of frames
_LABELS = (".seg.nrrd",)


class Export(Protocol):
    """Writer of one format. A format's module has `open_export`, which returns one."""

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        """Write a frame's class ids, uint8 (H, W); InferenceError if the format cannot contain them."""

    def close(self) -> None:
        """Finish all files."""

    def abandon(self) -> None:
        """Close unfinished files, which the caller removes."""


def open_exports(names: Sequence[str], folder: Path, stream: FrameStream, classes: Sequence[str]) -> list[Export]:
    """Return the exports into the sub-folders of `folder` that have the formats' names.

    `classes` begin with the background. Nothing is written before the first frame. Raises InferenceError: a name is
    unknown, or the format cannot contain the frames or classes. ModuleNotFoundError: a format's package is missing.
    """
    exports = []
    for name in dict.fromkeys(names):
        if name not in EXPORTS:
            raise InferenceError(f"export is {name!r}; use one of {', '.join(EXPORTS)}")
        module = import_module(f"shared_components.inference.export_{name}")
        opener = cast(Callable[[Path, FrameStream, Sequence[str]], Export], module.open_export)
        exports.append(opener(folder / name, stream, tuple(classes)))
    return exports


def class_colours(count: int) -> list[RGB]:
    """Return the palette's colours of classes, then others: all differ, as CVAT needs."""
    colours: list[RGB] = []
    for class_id in range(count):
        red, green, blue = colour(class_id)
        while (red, green, blue) in colours:
            red, green, blue = (red + 41) % 256, (green + 67) % 256, (blue + 97) % 256
        colours.append((red, green, blue))
    return colours


def write_frame(folder: Path, shot: Shot) -> Path:
    """Write a frame as PNG below a folder for tools that need the images beside the labels; return its path."""
    path = folder / f"{shot.path}.png"
    write_picture(path, shot.image)
    return path


def discard(*files: IO[str] | None) -> None:
    """Close unfinished files, even on a full disk, which refuses their buffered rest."""
    for file in files:
        if file is not None:
            with suppress(OSError):
                file.close()


def hashes_of(folder: Path, names: Collection[str] = EXPORTS) -> dict[str, Any]:
    """Return the record's entry for all exported files: a hash of labels, the size of frames, which are large.

    `names` are sub-folders of `folder`; the others are ignored.
    """
    files = {}
    for name in sorted(set(EXPORTS) & set(names)):
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                frame = path.name.endswith(_LARGE) and not path.name.endswith(_LABELS) and name != "png"
                key = path.relative_to(folder).as_posix()
                files[key] = str(path.stat().st_size) if frame else sha256_of(path)
    return {_HASHES: files} if files else {}


def refuse_corrected(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise InferenceError if exported files were changed or added since `record` was written."""
    known = {f"nifti/{name}": value for name, value in record.get(_NIFTI_HASHES, {}).items()}
    known |= record.get(_HASHES, {})
    for name, value in hashes_of(folder, record["files"]).get(_HASHES, {}).items():
        if known.get(name) != value:
            change = "changed after the prediction" if name in known else "added after the prediction"
            raise InferenceError(
                f"{folder / name} was {change} and would be lost; move {folder / Path(name).parts[0]} away, or give "
                "another folder with --out"
            )
