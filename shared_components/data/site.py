"""A site: data source, split by video, and names of publishable and withholdable values."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shared_components.data.custom.description import KINDS, Own
from shared_components.data.files.classes import CLASS_MAPS, name_of, readable_as
from shared_components.data.readers import Reader, find_reader, reader_names

PUBLISHABLE = ("style", "text", "text_vector", "model", "result")
"""Profile items; ``model`` allows the server to use the site's whole model in the model for new hospitals, ``result``
adds it to the job's result."""

WITHHOLDABLE = ("loss", "scores", "seconds", "memory")
"""Values of the run log; `federation.messages.schema` lists the reply fields of each name."""


@dataclass(frozen=True)
class Source:
    """A data set's name, and the layout of a hospital's own data; can be pickled."""

    dataset: str
    own: Own | None = None

    @property
    def reader(self) -> Reader:
        if self.own is None:
            return find_reader(self.dataset)
        from shared_components.data.custom.readers import own_reader

        return own_reader(self.own)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the labels by id, background first; empty without labels."""
        return CLASS_MAPS.get(self.reader.CLASS_MAP, ()) if self.own is None else self.own.classes

    @property
    def usual_classes(self) -> tuple[str, ...]:
        """Class names for a site that sets no class map; may be coarser than `classes`."""
        return CLASS_MAPS.get(self.reader.USUAL, self.classes) if self.own is None else self.classes


def targets_of(dataset: str) -> tuple[str, ...]:
    return ("label",) if dataset in KINDS else find_reader(dataset).TARGETS


def source_names() -> list[str]:
    """Return the values of `dataset` in a site.yaml: public data sets, then the kinds of own data."""
    return [*reader_names(), *KINDS]


SPLITS = ("train", "validation", "test")
RENDERED = "render.json"  # file beside rendered data that describes them


class SiteError(ValueError):
    """An error that the site must fix; the message names the site or its file, and what to do."""


@dataclass(frozen=True)
class VideoRange:
    """The labelled frames [start, stop) of a video, in time order; stop None means the end."""

    video: str
    start: int = 0
    stop: int | None = None

    def overlaps(self, other: VideoRange) -> bool:
        """Return whether two ranges share a frame."""
        ends_before = self.stop is not None and self.stop <= other.start
        begins_after = other.stop is not None and other.stop <= self.start
        return self.video == other.video and not ends_before and not begins_after

    def __str__(self) -> str:
        return self.video if self.stop is None else f"{self.video}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Site:
    """The checked content of a `site.yaml`, see `site_file.MEANINGS`."""

    name: str
    source: Source
    root: Path
    classes: tuple[str, ...]  # names by id, background first; empty without labels
    split: dict[str, tuple[VideoRange, ...]]
    task: str  # empty: the bundle's first
    frame_interval: int
    history: bool
    rate: float | None  # frame numbers per second of video; None: unknown
    text: str
    publish: tuple[str, ...]
    quarantine: float
    path: Path  # the site.yaml
    text_vectors: Path | None = None
    text_encoder: Path | None = None
    added: Site | None = None  # site whose training split is added, with labels in this site's classes
    withhold: tuple[str, ...] = ()

    @property
    def dataset(self) -> str:
        return self.source.dataset

    @property
    def public(self) -> bool:
        """Whether the videos come from a public data set, not from a renderer or a hospital."""
        return self.source.own is None and not (self.root.parent / RENDERED).is_file()


def unfit(site: Site, other: Site) -> str:
    """Return why a site cannot also train on another site's frames, and what to do; empty if it can.

    The other site must learn the same task, have training videos, have the same or finer classes, and train on no
    frame of this site's splits.
    """
    if other.task not in ("", site.task):
        instead = f"a site of {site.task!r}" if site.task else f"another, or write 'task: {other.task}' here, too"
        return f"whose task is {other.task!r}; name {instead}"
    if not other.split.get("train"):
        return "whose split names no video under 'train'; only training videos would be added"
    if site.classes and other.classes and site.classes not in readable_as(other.classes):
        common = set(readable_as(site.classes)) & set(readable_as(other.classes))
        coarser = next((name for name, classes in CLASS_MAPS.items() if classes in common), None)
        remedy = f"write 'classes: {coarser}' here, or name" if coarser else "name"
        labels = f"whose labels are {name_of(other.classes)!r} and cannot be read as {name_of(site.classes)!r}"
        return f"{labels}; {remedy} another site.yaml"
    return _shared_frames(site, other)


def _shared_frames(site: Site, other: Site) -> str:
    root, other_root = site.root.resolve(), other.root.resolve()  # a data set's folder, or the folder above it
    if not (root.is_relative_to(other_root) or other_root.is_relative_to(root)):
        return ""
    same = root == other_root and site.dataset == other.dataset
    for split, part in ((split, part) for split, ranges in site.split.items() for part in ranges):
        shared = any(part.overlaps(added) for added in other.split["train"])
        if shared and (same or _images(site, part.video) & _images(other, part.video)):
            return f"which trains on {part}, a part of this site's own split {split!r}; take it out of one of them"
    return ""


def _images(site: Site, video: str) -> set[Path]:
    with suppress(ValueError, OSError, KeyError):  # the reader reports the error later
        return {path.resolve() for path in site.source.reader.images(site.root, video).values()}
    return set()
