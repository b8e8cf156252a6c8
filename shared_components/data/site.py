"""A site: its split by video, its data source, what it may publish or withhold, and its errors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shared_components.data.classes import CLASS_MAPS, name_of, readable_as
from shared_components.data.custom.description import KINDS, Own
from shared_components.data.readers import Reader, find_reader, reader_names

PUBLISHABLE = ("style", "text", "text_vector", "model", "result")
"""Profile items; ``model`` lets the site's whole model take part in the outsider's, ``result`` puts it into the job's
result by itself."""

WITHHOLDABLE = ("loss", "scores", "seconds", "memory")
"""What is for the record alone; `federation.messages.schema` says which values of a reply each name covers."""


@dataclass(frozen=True)
class Source:
    """A dataset's name, and, where its layout is the site's own, what that is. It may go to other processes."""

    dataset: str
    own: Own | None = None

    @property
    def reader(self) -> Reader:
        """What reads its files."""
        if self.own is None:
            return find_reader(self.dataset)
        from shared_components.data.custom.readers import own_reader

        return own_reader(self.own)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of its labels by id, background first; none where it has no labels."""
        if self.own is not None:
            return self.own.classes
        return CLASS_MAPS.get(self.reader.CLASS_MAP, ())

    @property
    def usual_classes(self) -> tuple[str, ...]:
        """Names of the classes of a site that names no class map, which may be coarser."""
        return self.classes if self.own is not None else CLASS_MAPS.get(self.reader.USUAL, self.classes)


def targets_of(dataset: str) -> tuple[str, ...]:
    """Return the targets of a dataset beside its images."""
    return ("label",) if dataset in KINDS else find_reader(dataset).TARGETS


def source_names() -> list[str]:
    """Return the values of `dataset` in a site.yaml: the public datasets, and the layouts of data of one's own."""
    return [*reader_names(), *KINDS]


SPLITS = ("train", "validation", "test")
RENDERED = "render.json"
"""Beside a rendered site's data: how they were made."""


class SiteError(ValueError):
    """Something at a site must be put right; the message names the site or its file, and what to do."""


@dataclass(frozen=True)
class VideoRange:
    """The labelled frames [start, stop) of one video, in time order; stop None means to the end."""

    video: str
    start: int = 0
    stop: int | None = None

    def overlaps(self, other: VideoRange) -> bool:
        """Say whether two ranges share a frame."""
        ends_before = self.stop is not None and self.stop <= other.start
        begins_after = other.stop is not None and other.stop <= self.start
        return self.video == other.video and not ends_before and not begins_after

    def __str__(self) -> str:
        return self.video if self.stop is None else f"{self.video}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Site:
    """What a `site.yaml` says, checked.

    Attributes:
        source: its dataset.
        classes: names of its labels' classes by id, background first; none where the dataset has no labels.
        task: kind of task, empty for the first one of the bundle.
        history: whether a clip may show the frames before its own.
        rate: frame numbers per second of video; None where it is not known.
        text_vectors: file of vectors of texts; None: the project's own.
        text_encoder: folder of a text encoder; None: the site has none.
        added: the site whose training split is added to this one's, with labels read in this one's classes; None: the
            site trains on its own frames alone.
    """

    name: str
    source: Source
    root: Path
    classes: tuple[str, ...]
    split: dict[str, tuple[VideoRange, ...]]
    task: str
    frame_interval: int
    history: bool
    rate: float | None
    text: str
    publish: tuple[str, ...]
    quarantine: float
    path: Path
    text_vectors: Path | None = None
    text_encoder: Path | None = None
    added: Site | None = None
    withhold: tuple[str, ...] = ()

    @property
    def dataset(self) -> str:
        """Name of its dataset."""
        return self.source.dataset

    @property
    def public(self) -> bool:
        """Whether its videos are those of a public data set, by the names that all know, and not rendered ones."""
        return self.source.own is None and not (self.root.parent / RENDERED).is_file()


def unfit(site: Site, other: Site) -> str:
    """Say why a site cannot train on another one's frames besides its own, and what to do; nothing where it can.

    It cannot where the other one learns something else, has no training videos, knows coarser classes, or trains on
    frames that this one has in a split: it would learn from what it is tested on, or from a frame twice.
    """
    if other.task not in ("", site.task):
        instead = f"a site of {site.task!r}" if site.task else f"one, or write 'task: {other.task}' here as well"
        return f"whose task is {other.task!r}; name {instead}"
    if not other.split.get("train"):
        return "whose split names no video under 'train'; only those would be added"
    if site.classes and other.classes and site.classes not in readable_as(other.classes):
        common = set(readable_as(site.classes)) & set(readable_as(other.classes))
        coarser = next((name for name, classes in CLASS_MAPS.items() if classes in common), None)
        remedy = f"write 'classes: {coarser}' here, or name" if coarser else "name"
        return (
            f"whose labels are {name_of(other.classes)!r} and cannot be read as {name_of(site.classes)!r}; {remedy} "
            "another site.yaml"
        )
    return _shared(site, other)


def _shared(site: Site, other: Site) -> str:
    here, there = site.root.resolve(), other.root.resolve()  # a data set's folder, or the one above it
    if not (here.is_relative_to(there) or there.is_relative_to(here)):
        return ""
    same = here == there and site.dataset == other.dataset
    for split, ranges in site.split.items():
        for part in ranges:
            shared = any(part.overlaps(added) for added in other.split["train"])
            if shared and (same or _images(site, part.video) & _images(other, part.video)):
                return f"which trains on {part}, a part of this site's own split {split!r}; take it out of one of them"
    return ""


def _images(site: Site, video: str) -> set[Path]:
    """Return the images of a video; none where it cannot be listed, which whoever reads it says."""
    with suppress(ValueError, OSError, KeyError):
        return {path.resolve() for path in site.source.reader.images(site.root, video).values()}
    return set()
