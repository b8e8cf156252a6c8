"""Draw annotated frames as masks of class ids, and write them with the table of ids."""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from shared_components.common.atomic import NotWritten, not_written, write_bytes, write_text
from shared_components.common.counted import counted
from shared_components.common.progress import follow
from shared_components.data.annotations.find_images import ImageFolder, Target, image_size, video_size
from shared_components.data.annotations.shapes import AGAIN, Annotations, Frame, Polygons
from shared_components.data.custom.ids import BACKGROUND, IGNORE, class_name
from shared_components.data.files.classes import IGNORED
from shared_components.data.files.images import DataError, Size, refuse_large
from shared_components.data.files.inventory import Inventory, LeftOut
from shared_components.data.files.label_names import described, label_names

TABLE = "labels.txt"
"""ITK-SNAP's label descriptions in the folder of masks; `surgfl site init` reads the names there."""
_FIXED = {BACKGROUND: 0, IGNORE: IGNORED}


@dataclass
class Conversion:
    """Result of a conversion.

    Attributes:
        inventory: Frames, shapes and classes that were used and left out.
        pixels, frames: Number of pixels and of masks by class.
        notes: Sentences on crowd regions, occluded shapes, overlaps and objects without an area.
        written, unchanged: Number of new masks, and of masks that already existed.
        of_videos: Whether frames come from video files.
    """

    inventory: Inventory
    pixels: Counter[str] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    written: int = 0
    unchanged: int = 0
    of_videos: bool = False


@dataclass(frozen=True)
class _Job:
    """A frame to draw, its annotation file, and its image."""

    annotations: Annotations
    frame: Frame
    target: Target


def convert(
    files: Sequence[Annotations],
    images: Path,
    out: Path,
    *,
    names: Mapping[str, str] | None = None,
    replace: bool = False,
) -> Conversion:
    """Write a PNG of class ids, uint8 (H, W), for each annotated frame below `out`, and the table of ids.

    Each mask has the path of its image below `images`. Pixels outside of all shapes are background. The table of an
    earlier conversion is continued, so its ids stay. After an error `out` is as it was before.

    Args:
        names: New names of classes, which may be equal to merge classes, `background` or `ignore`.
        replace: Whether masks that differ are replaced; otherwise they raise DataError.
    """
    jobs, left_out = _jobs(files, ImageFolder(images, without=out))
    if not jobs:
        reasons = "; ".join(map(str, left_out)) or "it lists no frames"
        raise DataError(files[0].path, f"has no frame to convert: {reasons}", "name the annotated images with --images")
    ids, unused = _class_ids(files, jobs, out, names or {})
    if unused:
        left_out.append(LeftOut("classes", tuple(unused), "without shapes", len(unused)))
    shapes = sum(len(job.frame.shapes) for job in jobs)
    used = {"frames": len(jobs), "shapes": shapes, "classes": len(ids.used)}
    result = Conversion(Inventory(used, tuple(left_out)), of_videos=any(job.target.video for job in jobs))
    drawing: Counter[str] = Counter()
    with _published(out) as part:
        table = {0: BACKGROUND} | {number: name for name, number in ids.table.items() if number}
        write_text(part / TABLE, described(table))
        for job in follow(jobs, "drawing", len(jobs)):
            mask = _draw(job, ids, drawing)
            _count(mask, ids, result)
            png = cv2.imencode(".png", mask)[1].tobytes()
            if _is_new(out / job.target.mask, png, replace=replace):
                write_bytes(part / job.target.mask, png)
                result.written += 1
            else:
                result.unchanged += 1
    result.notes = list(_notes(files, jobs, drawing))
    return result


@contextmanager
def _published(out: Path) -> Iterator[Path]:
    """Yield a hidden folder, and move its files to `out` after the block; after an error remove it."""
    part = out / ".part" if out.is_dir() else out.absolute().with_name(f".{out.absolute().name}.part")
    if out.exists() and not out.is_dir():
        raise DataError(out, "is a file", "give --out a folder")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a conversion that was killed
        yield part
        if not out.exists():
            part.rename(out)
            return
        for path in sorted(part.rglob("*")):
            target = out / path.relative_to(part)
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
    except OSError as error:
        if isinstance(error, NotWritten):
            raise
        raise not_written(out, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


@dataclass(frozen=True)
class _ClassIds:
    by_name: Mapping[str, int]  # id of each name in the annotation files
    table: Mapping[str, int]  # id of each class
    used: frozenset[str]  # classes with shapes


def _class_ids(
    files: Sequence[Annotations], jobs: Sequence[_Job], out: Path, names: Mapping[str, str]
) -> tuple[_ClassIds, list[str]]:
    """Return the ids of classes with shapes, in the files' order, and the names without shapes."""
    sources = {name: file.path for file in reversed(files) for name in file.classes}
    shown = {shape.name for job in jobs for shape in job.frame.shapes}
    if unknown := sorted(names.keys() - sources.keys()):
        listed = ", ".join(sources) or "none"
        raise ValueError(f"--rename names the class {unknown[0]!r}; the annotations have {listed}")
    earlier = label_names([out]) if (out / TABLE).is_file() else {}
    table = {name: number for number, name in earlier.items() if isinstance(number, int)} | _FIXED
    by_name: dict[str, int] = {}
    for name in dict.fromkeys(name for file in files for name in file.classes if name in shown):
        try:
            given = class_name(" ".join(names.get(name, name).split()), name)
        except ValueError as error:
            what = f"has a class {name!r:.80} whose name cannot be used ({error})"
            raise DataError(sources[name], what, "give it another name: --rename 'OLD=NEW'") from error
        number = table.setdefault(given, max((n for n in table.values() if n < IGNORED), default=0) + 1)
        if number == IGNORED and given != IGNORE:
            raise DataError(sources[name], f"has more than {IGNORED - 1} classes", "merge some: --rename 'OLD=NEW'")
        by_name[name] = number
    used = frozenset(name for name, number in table.items() if number in by_name.values() and name not in _FIXED)
    kept = {name: number for name, number in table.items() if name not in _FIXED or number in by_name.values()}
    return _ClassIds(by_name, kept, used), [name for name in sources if name not in shown]


def _jobs(files: Sequence[Annotations], folder: ImageFolder) -> tuple[list[_Job], list[LeftOut]]:
    jobs: dict[str, _Job] = {}
    without: defaultdict[str, list[str]] = defaultdict(list)
    for annotations in files:
        for frame in annotations.frames:
            name = frame.names[0] if frame.names else ""
            if not frame.shapes:
                without["without shapes"].append(name)
            elif (target := folder.find(frame, annotations)) is None:
                without[f"without an image in {folder.root}"].append(name)
            elif (other := jobs.get(target.mask)) is not None:
                again = other.annotations.path == annotations.path
                what = f"annotates {target.path}{' twice' if again else f', as {other.annotations.path} does'}"
                raise DataError(annotations.path, f"{what} ({name!r:.80})", "keep one of the two annotations")
            else:
                jobs[target.mask] = _Job(annotations, frame, target)
    left_out = [LeftOut("frames", tuple(names), why, len(names)) for why, names in without.items()]
    kinds = sum((annotations.left_out for annotations in files), Counter[str]())
    left_out += [LeftOut("annotations", (kind,), "not drawn", count) for kind, count in kinds.items() if count]
    return list(jobs.values()), left_out


def _draw(job: _Job, ids: _ClassIds, drawing: Counter[str]) -> np.ndarray:
    """Return the mask of a frame; count shapes outside, empty shapes, and pixels of several classes."""
    size = _size(job)
    mask = np.zeros(size, np.uint8)
    owner = np.full(size, np.iinfo(np.int64).max)  # pixels of the shape that a pixel belongs to
    crossed = np.zeros(size, bool)
    for shape in job.frame.shapes:
        try:
            area = shape.draw(size)
        except (ValueError, TypeError, OverflowError) as error:
            what = f"has a shape of {shape.name!r:.80} in frame {job.frame.names[0]!r:.100} that is damaged ({error})"
            raise DataError(job.annotations.path, what, AGAIN) from error
        covered, number = int(area.sum()), ids.by_name[shape.name]
        drawing["empty"] += not covered
        drawing["cut"] += isinstance(shape.draw, Polygons) and shape.draw.crosses_border(size)
        crossed |= area & (owner < np.iinfo(np.int64).max) & (mask != number)
        wins = area & (covered <= owner) if job.annotations.smaller_wins else area
        mask[wins], owner[wins] = number, covered
    if crossed.any():
        drawing["frames"] += 1
        drawing["pixels"] += int(crossed.sum())
    return mask


def _size(job: _Job) -> Size:
    """Return the (H, W) to draw; DataError if annotations and image differ in size."""
    path, declared = job.target.path, job.frame.size
    shown, stored = (video_size(path),) * 2 if job.target.video else image_size(path)
    refuse_large(path, shown)
    if declared in (None, shown):
        return shown
    if declared == stored:  # of the image before its EXIF orientation
        return stored
    (H, W), (image_H, image_W) = declared or shown, shown
    what = f"annotates {path} at {W}x{H}, and it is {image_W}x{image_H}"
    raise DataError(job.annotations.path, what, "name the folder of the annotated images with --images")


def _count(mask: np.ndarray, ids: _ClassIds, result: Conversion) -> None:
    pixels = np.bincount(mask.ravel(), minlength=IGNORED + 1)
    for name, number in ids.table.items():
        if number:
            result.pixels[name] += int(pixels[number])
            result.frames[name] += int(pixels[number] > 0)


def _is_new(path: Path, png: bytes, *, replace: bool) -> bool:
    """Return whether a mask is missing or differs from `png`; DataError if it differs and must stay."""
    if not path.is_file():
        return True
    if path.read_bytes() == png:
        return False
    if not replace:
        what = "is there already, and differs from the annotations"
        raise DataError(path, what, "give --out another folder, or replace such masks with --force")
    return True


def _notes(files: Sequence[Annotations], jobs: Sequence[_Job], drawing: Counter[str]) -> Iterator[str]:
    for kind, count in sum((annotations.notes for annotations in files), Counter[str]()).items():
        if count:
            yield f"{count} {kind} are drawn like other shapes"
    if beside := sum(bool(job.frame.others) for job in jobs):
        yield f"{counted(beside, 'frame')} with shapes also have boxes, points or lines, which are background there"
    if drawing["cut"]:
        yield f"{counted(drawing['cut'], 'shape')} cut at the border of the frame"
    if drawing["empty"]:
        yield f"{counted(drawing['empty'], 'shape')} without a pixel"
    if drawing["pixels"]:
        winner = "smaller" if files[0].smaller_wins else "later"
        where = f"{counted(drawing['pixels'], 'pixel')} in {counted(drawing['frames'], 'frame')}"
        yield f"classes overlap at {where}; the {winner} shape wins"
