"""Where a site's samples come from: a public dataset, or data of its own."""

from __future__ import annotations

from dataclasses import dataclass

from shared_components.data.classes import CLASS_MAPS
from shared_components.data.custom.description import KINDS, Own
from shared_components.data.readers import Reader, find_reader, reader_names


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


def targets_of(dataset: str) -> tuple[str, ...]:
    """Return the targets of a dataset beside its images."""
    return ("label",) if dataset in KINDS else find_reader(dataset).TARGETS


def source_names() -> list[str]:
    """Return the values of `dataset` in a site.yaml: the public datasets, and the layouts of data of one's own."""
    return [*reader_names(), *KINDS]
