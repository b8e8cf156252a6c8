"""Whether the training frames of one site may be added to another's (`also_trains_on` of site.yaml)."""

from __future__ import annotations

from shared_components.data.classes import CLASS_MAPS, name_of, readable_as
from shared_components.data.site import Site


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
    if other.dataset != site.dataset or other.root.resolve() != site.root.resolve():
        return ""
    for split, ranges in site.split.items():
        for part in ranges:
            if any(part.overlaps(added) for added in other.split["train"]):
                return f"which trains on {part}, a part of this site's own split {split!r}; take it out of one of them"
    return ""
