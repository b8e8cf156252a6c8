"""Read everything a site wants to use before anything is trained on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from shared_components.data.files import MISSING, DataError, refuse_other_size
from shared_components.data.readers import find_reader
from shared_components.data.sites import Frame, Site, SiteError, frames, list_frames

T = TypeVar("T")
_THREADS = 4  # decoding releases Python's lock


@dataclass(frozen=True)
class Problem:
    """One file that must be put right; `str` gives the sentence.

    `frame` is the frame that cannot be used, or None where a whole split is concerned. `quarantined` says
    that the site's `quarantine` allows to set this frame aside.
    """

    file: Path
    what: str
    what_to_do: str
    site: str
    split: str
    frame: Frame | None = None
    quarantined: bool = False

    def __str__(self) -> str:
        aside = " (set aside by the site's quarantine)" if self.quarantined else ""
        return f"site {self.site}: {self.file}: {self.what}; {self.what_to_do}{aside}"


def check_site(site: Site, *, full: bool = True, required: Sequence[str] = ("train",)) -> list[Problem]:
    """List all that is wrong with a site's data: missing, unreadable, mis-sized and mislabelled files.

    Bad data never raise. A site may start when every problem is `quarantined` or there is none.

    Args:
        full: read every file; False only looks whether each is there.
        required: splits that must have frames, whether `site.yaml` lists them or not.
    """
    splits = list(dict.fromkeys([*site.split, *required]))
    return [problem for split in splits for problem in _check_split(site, split, full)]


def readable_frames(
    site: Site, split: str, *, problems: Iterable[Problem] | None = None
) -> tuple[list[Frame], list[Frame]]:
    """Part a split's frames in those that can be used and those that are set aside.

    Args:
        problems: what `check_site` found; without it every file of the split is read here.

    Returns:
        The readable frames in their order, and the quarantined ones.

    Raises:
        SiteError: the split has no frames, or more of them are bad than the site's `quarantine` allows.
    """
    listed = frames(site, split)
    found = _check_split(site, split, True) if problems is None else list(problems)
    bad = {problem.frame: problem for problem in found if problem.split == split and problem.frame}
    for problem in bad.values():
        if not problem.quarantined:
            raise SiteError(
                f"{problem} ({len(bad)} of {len(listed)} frames of split {split!r} cannot be used, the "
                f"quarantine allows a share of {site.quarantine}; 'surgfl check-data' lists them)"
            )
    return [frame for frame in listed if frame not in bad], [frame for frame in listed if frame in bad]


def _check_split(site: Site, split: str, full: bool) -> list[Problem]:
    try:
        listed = list_frames(site, split)
    except DataError as error:
        return [_problem(error, site, split)]
    check = _unreadable if full else _missing
    with ThreadPoolExecutor(_THREADS) as threads:
        errors = list(threads.map(check, listed))
    bad = sum(map(bool, errors))
    quarantined = bad / len(listed) <= site.quarantine
    return [
        replace(_problem(error, site, split), frame=frame, quarantined=quarantined)
        for frame, found in zip(listed, errors, strict=True)
        for error in found
    ]


def _problem(error: DataError, site: Site, split: str) -> Problem:
    return Problem(error.file, error.what, error.what_to_do, site.name, split)


def _missing(frame: Frame) -> list[DataError]:
    return [DataError(path, *MISSING) for path in (frame.image, *frame.masks) if not path.is_file()]


def _unreadable(frame: Frame) -> list[DataError]:
    """Read one frame's image and each of its masks; list what is wrong with each."""
    reader = find_reader(frame.dataset)
    image, errors = _attempt(partial(reader.read_image, frame.image))
    for path in frame.masks:
        mask, error = _attempt(partial(reader.read_mask, (path,)))
        if image is not None and mask is not None and not reader.native_masks(frame.video):
            same_size = partial(refuse_other_size, image, mask, image_path=frame.image, mask_path=path)
            error = _attempt(same_size)[1]
        errors += error
    return errors


def _attempt(read: Callable[[], T]) -> tuple[T | None, list[DataError]]:
    try:
        return read(), []
    except DataError as error:
        return None, [error]
