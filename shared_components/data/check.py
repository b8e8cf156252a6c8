"""Read all files that a site will use before any training starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from shared_components.common.counted import counted
from shared_components.common.progress import follow
from shared_components.data.files import MISSING, DataError, Size, is_there, refuse_other_size
from shared_components.data.orientation import turn_of
from shared_components.data.samples import LABELLED, Sample, SampleSpec, list_samples, samples, target_noun
from shared_components.data.site import Site, SiteError
from shared_components.data.targets import is_map, refuse_other_form

T = TypeVar("T")
NEAREST, FARTHEST = 1, 255
"""mm: where half of a frame is nearer or farther, it is in another unit; files of 16 bits end at 256."""
DEPTH_UNIT = "export it in the unit of its data set, such as 16 bits with 256 per millimetre, 0 where it is unknown"
_THREADS, _MANY = 4, 32  # decoding releases Python's lock, and threads for a few files take longer than their reading
_REPEAT = "or write 'history: false' in site.yaml, which repeats the frame"

Seen = tuple[Size | None, list[DataError]]
"""An image's height and width, as far as it was read, and what is wrong with it."""


@dataclass(frozen=True)
class Problem:
    """One file that must be put right; `str` gives the sentence.

    `sample` is the sample that cannot be used, or None where a whole split is concerned. `quarantined` says
    that the site's `quarantine` allows to set this sample aside.
    """

    file: Path
    what: str
    what_to_do: str
    site: str
    split: str
    sample: Sample | None = None
    quarantined: bool = False

    def __str__(self) -> str:
        aside = " (set aside by the site's quarantine)" if self.quarantined else ""
        return f"site {self.site}: {self.file}: {self.what}; {self.what_to_do}{aside}"


def check_site(
    site: Site, spec: SampleSpec = LABELLED, *, full: bool = True, required: Sequence[str] = ("train",)
) -> list[Problem]:
    """List all that is wrong with a site's data: missing, unreadable, mis-sized and mislabelled files.

    Bad data never raise. A site may start when every problem is `quarantined` or there is none.

    Args:
        spec: what the site's task requires of a sample; files of other targets are not read.
        full: read every file; False only checks that each exists.
        required: splits that must have frames, whether `site.yaml` lists them or not.
    """
    splits = list(dict.fromkeys([*site.split, *required]))
    return [problem for split in splits for problem in _check_split(site, split, spec, full)]


def readable_samples(
    site: Site, split: str, spec: SampleSpec = LABELLED, *, problems: Iterable[Problem] | None = None
) -> tuple[list[Sample], list[Sample]]:
    """Part a split's samples in those that can be used and those that are set aside.

    Args:
        problems: what `check_site` found; without it every file of the split is read here.

    Returns:
        The readable samples in their order, and the quarantined ones.

    Raises:
        SiteError: the split has no frames, more of them are bad than the site's `quarantine` allows, or all are of no
            use together, such as depth of which none is known.
    """
    listed = samples(site, split, spec)
    every = _check_split(site, split, spec, True) if problems is None else problems
    found = [problem for problem in every if problem.split == split]
    bad = {problem.sample: problem for problem in found if problem.sample}
    if whole := [problem for problem in found if not problem.sample]:
        raise SiteError(str(whole[0]))
    for problem in bad.values():
        if not problem.quarantined:
            raise SiteError(
                f"{problem} ({len(bad)} of {counted(len(listed), 'frame')} of split {split!r} cannot be used, the "
                f"quarantine allows a share of {site.quarantine}; 'surgfl check-data' lists them)"
            )
    return [sample for sample in listed if sample not in bad], [sample for sample in listed if sample in bad]


def _check_split(site: Site, split: str, spec: SampleSpec, full: bool) -> list[Problem]:
    try:
        listed = list_samples(site, split, spec)
    except DataError as error:
        return [_problem(error, site, split)]
    look = _read_image if full else _find_image
    paths = {path: sample for sample in listed for path in sample.shown}
    targets = {(name, file): sample for sample in listed for _, name, file in _files(sample)}
    unknown: list[Path] = []  # files of depth without any
    look_at = partial(_read_target, unknown=unknown) if full else lambda named, sample: _find_image(named[1], sample)
    with ThreadPoolExecutor(_THREADS) as threads:  # they start when they are first used
        each = threads.map if len(paths) >= _MANY else map
        looks = follow(each(look, paths, paths.values()), f"reading {split}", len(paths))
        seen = dict(zip(paths, looks, strict=True))
        labels = follow(each(look_at, targets, targets.values()), f"checking {split}", len(targets))
        seen_targets = dict(zip(targets, labels, strict=True))
    depths, whole = [file for name, file in targets if name == "depth"], []
    if depths and len(unknown) == len(depths):
        what = f"holds no known depth, nor do the others of split {split!r}, {len(depths)} in all"
        whole = [_problem(DataError(depths[0], what, DEPTH_UNIT), site, split)]
    errors = [[*_errors_of(sample, seen, seen_targets), *_errors_of_length(sample, spec)] for sample in listed]
    bad = sum(map(bool, errors))
    quarantined = bad / len(listed) <= site.quarantine
    return whole + [
        replace(_problem(error, site, split), sample=sample, quarantined=quarantined)
        for sample, found in zip(listed, errors, strict=True)
        for error in found
    ]


def _problem(error: DataError, site: Site, split: str) -> Problem:
    return Problem(error.file, error.what, error.what_to_do, site.name, split)


def _find_image(path: Path, sample: Sample) -> Seen:
    return None, [] if is_there(path) else [DataError(path, *MISSING)]


def _read_image(path: Path, sample: Sample) -> Seen:
    image, errors = _attempt(partial(sample.source.reader.read_image, path))
    return None if image is None else image.shape[:2], errors


def _read_target(named: tuple[str, Path], sample: Sample, unknown: list[Path]) -> Seen:
    name, file = named
    target, errors = _attempt(partial(sample.source.reader.read_target, name, (file,)))
    if target is not None:
        errors = _attempt(partial(refuse_other_form, name, target, file))[1]
    if target is None or errors or not is_map(name):
        return None, errors
    if name == "depth":
        errors = _errors_of_depth(file, target, unknown)
    return target.shape[:2], errors


def _errors_of_depth(file: Path, depth: np.ndarray, unknown: list[Path]) -> list[DataError]:
    """Say whether depth (H, W) in mm cannot be an endoscope's; a file in which all is unknown joins `unknown`."""
    known = depth[depth > 0]
    if not known.size:
        unknown.append(file)
        return []
    median = float(np.median(known[::16]))  # a sixteenth says as much
    if NEAREST <= median <= FARTHEST:
        return []
    what = f"its depth is {median:.3g} mm in the middle, and an endoscope's lies between {NEAREST} and {FARTHEST}"
    return [DataError(file, what, DEPTH_UNIT)]


def _files(sample: Sample) -> Iterator[tuple[Path, str, Path]]:
    """List the files of a sample's targets, each with its image and the target's name; a frame shown twice once."""
    for image, targets in dict(reversed(sample.labelled)).items():
        yield from ((image, name, file) for name, files in targets.items() for file in files)


def _errors_of(sample: Sample, seen: Mapping[Path, Seen], targets: Mapping[tuple[str, Path], Seen]) -> list[DataError]:
    """List what is wrong with a sample's images and the files of its targets, as they were seen."""
    *earlier, current = sample.shown
    errors = [*seen[current][1], *(error for path in earlier for error in _errors_of_earlier(path, seen, current))]
    for image, name, file in _files(sample):
        errors += _errors_of_target(sample, target_noun(name), file, targets[name, file], image, seen[image][0])
    return errors


def _errors_of_length(sample: Sample, spec: SampleSpec) -> list[DataError]:
    """Say whether a whole video has fewer frames than are taken of it."""
    count = len(set(sample.images))
    if spec.targets_of != "video" or count == spec.frames:
        return []
    what = f"{sample.video} has {counted(count, 'frame')}, and {spec.frames} are taken of each video"
    return [DataError(sample.images[0].parent, what, "take the video out of the split, or ask for fewer frames")]


def _errors_of_earlier(path: Path, seen: Mapping[Path, Seen], current: Path) -> list[DataError]:
    """List what is wrong with an earlier frame of the clip that ends in `current`."""
    (size, errors), image_size = seen[path], seen[current][0]
    if size is not None and image_size is not None:
        same = partial(refuse_other_size, "earlier frame", size, path)
        return _attempt(partial(same, image_size=image_size, image_path=current))[1]
    return [DataError(path, f"{error.what}, and clips show it", f"{error.what_to_do}, {_REPEAT}") for error in errors]


def _errors_of_target(
    sample: Sample, noun: str, file: Path, found: Seen, image: Path, image_size: Size | None
) -> list[DataError]:
    size, errors = found
    if image_size is None or size is None or sample.source.reader.native_targets(sample.video):
        return errors
    fits = partial(turn_of, noun, size, file, image_size=image_size, image_path=image)
    return errors + _attempt(fits)[1]


def _attempt(read: Callable[[], T]) -> tuple[T | None, list[DataError]]:
    try:
        return read(), []
    except DataError as error:
        return None, [error]
