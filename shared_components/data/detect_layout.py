"""Tell whether a folder holds a public dataset in its own layout."""

from __future__ import annotations

from pathlib import Path

from shared_components.data.custom.description import KINDS
from shared_components.data.files import DataError
from shared_components.data.readers import find_reader, reader_names


def known_layout(root: Path, dataset: str | None = None) -> str | None:
    """Return the dataset that a folder holds; None where it is of no layout that is known.

    Args:
        dataset: look for this one alone; one of a site's own is never a known one.

    Raises:
        DataError: it was asked for and is not there.
    """
    if dataset in KINDS:
        return None
    if dataset is not None:
        _look(root, dataset)
        return dataset
    for name in reader_names():
        try:
            _look(root, name)
        except DataError:
            continue
        return name
    return None


def _look(root: Path, dataset: str) -> None:
    """Read the first labelled frame of the first video: folders alone may be called alike by chance."""
    reader = find_reader(dataset)
    videos = reader.videos(root)
    listing = reader.frames(root, videos[0]) if videos else []
    if not listing:
        raise DataError(root, f"holds no videos of {dataset}", "correct the folder")
    _, image, targets = listing[0]
    reader.read_image(image)
    for name, files in targets.items():
        reader.read_target(name, files)
