"""Recognise annotation files by their content, and read them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from types import ModuleType

import msgspec

from shared_components.common.counted import counted
from shared_components.data.annotations import coco, cvat, label_studio, labelme, seg_nrrd, yolo
from shared_components.data.annotations.shapes import AGAIN, Annotations
from shared_components.data.files.images import SEGMENTATIONS, DataError, folders_below, reading, refuse_special

FORMATS: Mapping[str, tuple[ModuleType, str]] = {
    "coco": (coco, ".json"),
    "labelme": (labelme, ".json"),
    "label-studio": (label_studio, ".json"),
    "cvat": (cvat, ".xml"),
    "yolo": (yolo, "data.yaml"),
    "seg-nrrd": (seg_nrrd, SEGMENTATIONS),
}
"""Module of each format, and how the names of its files end."""
_SEARCHED = 1 << 16  # bytes at the start and at the end of a file
_LISTED = 3  # files that a message lists
_DAMAGES = (msgspec.MsgspecError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError)


def format_of(path: Path) -> str | None:
    """Return the format of a file by its name and content; None for another file."""
    endings = [name for name, (_, ending) in FORMATS.items() if path.name.lower().endswith(ending)]
    if not endings:
        return None
    with reading(path, "cannot be opened ({})", "check its rights"):
        refuse_special(path)
        with path.open("rb") as file:
            text = file.read(_SEARCHED)
            size = file.seek(0, 2)
            if size > 2 * _SEARCHED:
                file.seek(-_SEARCHED, 2)
            else:
                file.seek(min(size, _SEARCHED))
            text += b"\n" + file.read()
    content = text.decode("utf-8", errors="replace")
    return next((name for name in endings if FORMATS[name][0].recognises(content)), None)


def find_annotations(folder: Path) -> dict[str, list[Path]]:
    """Return the annotation files below a folder by format, in natural order."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path, names in folders_below(folder):
        for name in names:
            if kind := format_of(path / name):
                found[kind].append(path / name)
    return dict(found)


def read_annotations(path: Path, kind: str) -> Annotations:
    """Read a file of a format; DataError if it is damaged or another file."""
    module, title = FORMATS[kind][0], FORMATS[kind][0].TITLE
    with reading(path, f"is not readable as {title} ({{}})", AGAIN, *_DAMAGES):
        return module.read(path)


def annotation_files(place: Path, kind: str | None = None) -> tuple[str, list[Path]]:
    """Return the format and the files of a file or folder of annotations; DataError for none or several formats."""
    known = ", ".join(module.TITLE for module, _ in FORMATS.values())
    if place.is_file():
        if (found := kind or format_of(place)) is None:
            raise DataError(place, f"is no annotation file of {known}", "export the annotations in such a format")
        return found, [place]
    if not place.is_dir():
        raise DataError(place, "is missing", "name an annotation file, or the folder of such files")
    files = find_annotations(place)
    if kind is not None:
        files = {kind: files[kind]} if kind in files else {}
    if not files:
        raise DataError(place, f"contains no annotation files of {known}", "name the folder of the exported files")
    if len(files) > 1:
        raise DataError(place, f"contains {listed(files, place)}", "name the file of one format, or add --format")
    return next(iter(files.items()))


def listed(files: Mapping[str, Sequence[Path]], folder: Path) -> str:
    """Return in words how many files of each format there are, and the first of them."""
    parts = []
    for kind, paths in files.items():
        names = ", ".join(path.relative_to(folder).as_posix() for path in paths[:_LISTED])
        more = ", ..." if len(paths) > _LISTED else ""
        parts.append(f"{counted(len(paths), f'{FORMATS[kind][0].TITLE} file')} ({names}{more})")
    return " and ".join(parts)


def conversion_hint(folder: Path) -> str:
    """Return which annotation files a folder contains and the command that converts them; "" if there are none."""
    files = find_annotations(folder)
    if not files:
        return ""
    option = f" --format {next(iter(files))}" if len(files) > 1 else ""
    place = folder
    if len(files) == 1 and len(paths := next(iter(files.values()))) == 1:
        place = paths[0]
    command = f"surgfl masks {quote(str(place))} --images {quote(str(folder))} --out {quote(str(folder / 'masks'))}"
    return f"contains {listed(files, folder)}; convert them to masks with `{command}{option}`"
