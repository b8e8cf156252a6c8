"""Scores of a model where it has not trained: rendered sites of several looks, and real ones, read in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from shared_components.core.evaluation import native_batches, quick_scores
from shared_components.core.merged_classes import read_as
from shared_components.data.check import readable_samples
from shared_components.data.classes import CLASS_MAPS, name_of
from shared_components.data.samples import LABELLED, SampleSpec
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from shared_components.data.synthetic.looks import LOOKS
from shared_components.data.synthetic.site import write_site
from shared_components.data.synthetic.site_plan import layouts_for
from shared_components.experiments.shipping.weights import Pretrained

UNSEEN = 2_000_000  # looks from this number on are drawn neither in a pre-training nor in its own checks
SEED = 7_000_000
SPLIT = "test"
COARSEST = CLASS_MAPS["foreground"]


@dataclass(frozen=True)
class Films:
    """Number and size of the videos that are rendered of every look."""

    videos: int = 2
    frames: int = 6
    height: int = 256
    width: int = 320


@dataclass(frozen=True)
class Tested:
    """A site on which a model is scored; `where` is "named look", "unseen look" or "real"."""

    name: str
    where: str
    site: Site


def looks_to_test(unseen: int, named: Sequence[str] = LOOKS) -> list[tuple[str, str]]:
    """Return every named look and some that no pre-training draws, as (look, where)."""
    drawn = [f"random-{UNSEEN + number}" for number in range(unseen)]
    return [*((look, "named look") for look in named), *((look, "unseen look") for look in drawn)]


def rendered_sites(
    looks: Iterable[tuple[str, str]], folder: Path, *, kind: str, spec: SampleSpec = LABELLED, films: Films = Films()
) -> Iterator[Tested]:
    """Render a small test site of every look into a folder, lazily; its seed follows from its place.

    `kind` is the task's, whose `spec` decides on clips.
    """
    for number, (look, where) in enumerate(looks):
        path = write_site(
            folder / look,
            look=look,
            seed=SEED + number,
            videos={SPLIT: films.videos},
            frames_per_video=films.frames,
            height=films.height,
            width=films.width,
            layout=layouts_for(kind)[0],
            task=kind,
            clip=spec.frames,
            interval=spec.interval,
        )
        yield Tested(look, where, load_site(path, name=look))


def real_sites(files: Mapping[str, Path]) -> list[Tested]:
    """Open sites by the name that the card will have for them.

    Raises:
        SiteError: a description is wrong, or has no test split.
    """
    found = [Tested(name, "real", load_site(path, name=name)) for name, path in files.items()]
    for one in found:
        if not one.site.split.get(SPLIT):
            raise SiteError(f"{one.site.path}: has no split {SPLIT!r}, on which weights are scored; list its videos")
    return found


def score(network: nn.Module, trained: Pretrained, tested: Tested) -> Iterator[dict[str, Any]]:
    """Score a model on a site's test split, at the labels' own size; a real site's classes also merged to one.

    Raises:
        SiteError: The site's data are bad.
        ValueError: The model's classes cannot be read as the site's.
    """
    own = tested.site.classes if trained.notes["task"] == "segmentation" else ()
    for classes in dict.fromkeys([own, COARSEST] if own and tested.where == "real" else [own]):
        yield _scored(network, trained, replace(tested, site=replace(tested.site, classes=classes)))


def _scored(network: nn.Module, trained: Pretrained, tested: Tested) -> dict[str, Any]:
    site = tested.site
    task = trained.task(site.classes)
    if site.classes:
        network = read_as(network, trained.outputs, site.classes)
    kept, _ = readable_samples(site, SPLIT, spec=task.spec)
    found = quick_scores(network, task, native_batches(kept, trained.size))
    numbers = {metric.name: found[metric.name] for metric in task.metrics if metric.name in found}
    about = {"name": tested.name, "where": tested.where, "classes": name_of(site.classes), "frames": len(kept)}
    return about | numbers
