"""Read all files that a site will use before training starts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from shared_components.common.counted import counted
from shared_components.common.progress import follow
from shared_components.data.files.images import MISSING, DataError, Size, file_exists, refuse_other_size, turn_of
from shared_components.data.samples import LABELLED, Sample, SampleSpec, list_samples, samples, target_noun
from shared_components.data.site import Site, SiteError
from shared_components.data.targets import is_map, refuse_other_form

T = TypeVar("T")
_NEAREST, _FARTHEST = 1, 255  # mm: limits of a frame's median depth; 16-bit files end at 256
_DEPTH_UNIT = "export it in the unit of its data set, such as 16 bits with 256 per millimetre, 0 for unknown"
_THREADS, _MANY = 4, 32  # decoding releases the GIL; for fewer files, starting threads takes longer than reading
_REPEAT = "or write 'history: false' in site.yaml, which repeats the frame"

Reading = tuple[Size | None, list[DataError]]  # (H, W) of a file, if it was read, and its errors


@dataclass(frozen=True)
class Problem:
    """An error in one file; `str` returns the message."""

    file: Path
    what: str
    what_to_do: str
    site: str
    split: str
    sample: Sample | None = None  # unusable sample; None: the problem concerns the whole split
    quarantined: bool = False  # whether the site's `quarantine` allows to leave out the sample

    def __str__(self) -> str:
        aside = " (set aside by the site's quarantine)" if self.quarantined else ""
        return f"site {self.site}: {self.file}: {self.what}; {self.what_to_do}{aside}"


def check_site(
    site: Site, spec: SampleSpec = LABELLED, *, full: bool = True, required: Sequence[str] = ("train",)
) -> list[Problem]:
    """List all problems of a site's data: missing, unreadable, mis-sized and mislabelled files.

    Bad data never raise. A site may start if it has no problem, or only `quarantined` problems. Files of targets that
    ``spec`` does not need are not read; without ``full``, only the existence of files is checked. The ``required``
    splits must have frames, even if `site.yaml` does not list them.
    """
    splits = dict.fromkeys([*site.split, *required])
    return [problem for split in splits for problem in _check_split(site, split, spec, full)]


def readable_samples(
    site: Site, split: str, spec: SampleSpec = LABELLED, *, problems: Iterable[Problem] | None = None
) -> tuple[list[Sample], list[Sample]]:
    """Return a split's readable samples in order, and its quarantined samples.

    ``problems`` is the result of `check_site`; None reads every file of the split. SiteError if the split has no
    frames, more bad frames than the site's `quarantine` allows, or a problem as a whole, such as no known depth.
    """
    listed = samples(site, split, spec)
    problems = _check_split(site, split, spec, True) if problems is None else problems
    of_split = [problem for problem in problems if problem.split == split]
    if whole := [problem for problem in of_split if not problem.sample]:
        raise SiteError(str(whole[0]))
    bad = {problem.sample: problem for problem in of_split}
    for problem in bad.values():
        if not problem.quarantined:
            share = f"{len(bad)} of {counted(len(listed), 'frame')} of split {split!r} cannot be used"
            allowed = f"the quarantine allows a share of {site.quarantine}"
            raise SiteError(f"{problem} ({share}, {allowed}; 'surgfl check-data' lists them)")
    return [sample for sample in listed if sample not in bad], [sample for sample in listed if sample in bad]


def _check_split(site: Site, split: str, spec: SampleSpec, full: bool) -> list[Problem]:
    try:
        listed = list_samples(site, split, spec)
    except DataError as error:
        return [_problem(error, site, split)]
    images = {path: sample for sample in listed for path in sample.shown}
    targets = {(name, file): sample for sample in listed for _, name, file in _target_files(sample)}
    unknown: list[Path] = []  # depth files without a known value
    read_image = _read_image if full else _find_image
    read_target = partial(_read_target, unknown=unknown) if full else lambda key, sample: _find_image(key[1], sample)
    with ThreadPoolExecutor(_THREADS) as threads:  # threads start on first use
        run = threads.map if len(images) >= _MANY else map
        readings = follow(run(read_image, images, images.values()), f"reading {split}", len(images))
        image_readings = dict(zip(images, readings, strict=True))
        readings = follow(run(read_target, targets, targets.values()), f"checking {split}", len(targets))
        target_readings = dict(zip(targets, readings, strict=True))
    depths, whole = [file for name, file in targets if name == "depth"], []
    if depths and len(unknown) == len(depths):
        what = f"has no known depth, and neither have the others of split {split!r}, {len(depths)} in all"
        whole = [_problem(DataError(depths[0], what, _DEPTH_UNIT), site, split)]
    errors = [[*_sample_errors(sample, image_readings, target_readings), *_length(sample, spec)] for sample in listed]
    quarantined = sum(map(bool, errors)) / len(listed) <= site.quarantine
    return whole + [
        replace(_problem(error, site, split), sample=sample, quarantined=quarantined)
        for sample, sample_errors in zip(listed, errors, strict=True)
        for error in sample_errors
    ]


def _problem(error: DataError, site: Site, split: str) -> Problem:
    return Problem(error.file, error.what, error.what_to_do, site.name, split)


def _find_image(path: Path, sample: Sample) -> Reading:
    return None, [] if file_exists(path) else [DataError(path, *MISSING)]


def _read_image(path: Path, sample: Sample) -> Reading:
    image, errors = _attempt(lambda: sample.source.reader.read_image(path))
    return None if image is None else image.shape[:2], errors


def _read_target(key: tuple[str, Path], sample: Sample, unknown: list[Path]) -> Reading:
    name, file = key
    target, errors = _attempt(lambda: sample.source.reader.read_target(name, (file,)))
    if target is None:
        return None, errors
    errors = _attempt(lambda: refuse_other_form(name, target, file))[1]
    if errors or not is_map(name):
        return None, errors
    return target.shape[:2], _depth_errors(file, target, unknown) if name == "depth" else []


def _depth_errors(file: Path, depth: np.ndarray, unknown: list[Path]) -> list[DataError]:
    """Check the unit of depth (H, W) in mm; add a file without known depth to `unknown`."""
    known = depth[depth > 0]
    if not known.size:
        unknown.append(file)
        return []
    median = float(np.median(known[::16]))  # a sixteenth is enough
    if _NEAREST <= median <= _FARTHEST:
        return []
    return [DataError(file, f"has a median depth of {median:.3g} mm, not {_NEAREST} to {_FARTHEST}", _DEPTH_UNIT)]


def _target_files(sample: Sample) -> Iterator[tuple[Path, str, Path]]:
    """Yield image, target name and file for each file of a sample's targets; a repeated frame comes once."""
    for image, targets in dict(reversed(sample.labelled)).items():
        yield from ((image, name, file) for name, files in targets.items() for file in files)


def _sample_errors(
    sample: Sample, images: Mapping[Path, Reading], targets: Mapping[tuple[str, Path], Reading]
) -> list[DataError]:
    """List the errors of a sample's images and target files."""
    *earlier, current = sample.shown
    errors = [*images[current][1], *(error for path in earlier for error in _earlier_errors(path, images, current))]
    for image, name, file in _target_files(sample):
        (size, target_errors), image_size = targets[name, file], images[image][0]
        errors += target_errors
        if size is not None and image_size is not None and not sample.source.reader.native_targets(sample.video):
            fit = partial(turn_of, target_noun(name), size, file, image_size=image_size, image_path=image)
            errors += _attempt(fit)[1]
    return errors


def _earlier_errors(path: Path, images: Mapping[Path, Reading], current: Path) -> list[DataError]:
    """List the errors of an earlier frame of the clip that ends in `current`."""
    (size, errors), image_size = images[path], images[current][0]
    if size is not None and image_size is not None:
        same = partial(refuse_other_size, "earlier frame", size, path)
        return _attempt(partial(same, image_size=image_size, image_path=current))[1]
    return [DataError(path, f"{error.what}, and clips show it", f"{error.what_to_do}, {_REPEAT}") for error in errors]


def _length(sample: Sample, spec: SampleSpec) -> list[DataError]:
    """Check that a whole video has enough frames."""
    count = len(set(sample.images))
    if spec.targets_of != "video" or count == spec.frames:
        return []
    what = f"{sample.video} has {counted(count, 'frame')}, and the task needs {spec.frames} of each video"
    return [DataError(sample.images[0].parent, what, "take the video out of the split, or ask for fewer frames")]


def _attempt(read: Callable[[], T]) -> tuple[T | None, list[DataError]]:
    try:
        return read(), []
    except DataError as error:
        return None, [error]
