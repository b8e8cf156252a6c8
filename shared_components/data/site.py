"""What a site is: its split by video, its source of data, and the error that names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared_components.data.source import Source

SPLITS = ("train", "validation", "test")


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
