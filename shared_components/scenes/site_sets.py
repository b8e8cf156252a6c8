"""Sets of rendered sites with the imbalance and the differences of a paper's federation.

`endo700k` has the nine sites of FL-EndoViT's pre-training, 461-fold unequal. `fedsurg` has four centres with graded
operations; the last centre never trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared_components.data.endo700k import PARTS
from shared_components.data.published import FL_ENDOVIT
from shared_components.scenes.site import write_site

IMAGES: dict[str, int] = {site: FL_ENDOVIT[dataset] for site, dataset in PARTS.items()}
"""Images of Endo700k's parts by their sites."""
_LONGEST = 10  # times the shortest video
UNSEEN = "unseen"  # the site of a set that is not of the federation
_CENTRES = {"centre-1": ("rose", 40), "centre-2": ("amber", 36), "centre-3": ("ivory", 44), UNSEEN: ("violet", 24)}
"""Looks, and videos to train on: in the proportions of FedSurg's public 10, 9 and 11, of which a network from random
weights learns too little (measured); those of the unseen centre are to adapt to it."""


@dataclass(frozen=True)
class SetSite:
    """One site of a set, as `write_site` takes it."""

    name: str
    look: str
    layout: str
    task: str
    videos: Mapping[str, int]
    frames_per_video: int


def _endo700k(frames: int) -> tuple[SetSite, ...]:
    """Return nine sites without labels, of which the smallest trains on one video."""
    smallest = min(IMAGES.values())
    sites = []
    for name, count in IMAGES.items():
        images = round(frames * count / smallest)
        videos = math.ceil(images / (frames * _LONGEST))
        per_video = round(images / videos)
        split = {"train": videos, "validation": 1}
        sites.append(SetSite(name, name, "endovis2017", "reconstruction", split, per_video))
    return tuple(sites)


def _fedsurg(frames: int) -> tuple[SetSite, ...]:
    """Return four centres, each with a video of every grade to validate and two to test."""
    return tuple(
        SetSite(name, look, "appendix300", "classification", {"train": train, "validation": 6, "test": 12}, frames)
        for name, (look, train) in _CENTRES.items()
    )


SETS: dict[str, Callable[[int], tuple[SetSite, ...]]] = {"endo700k": _endo700k, "fedsurg": _fedsurg}


def site_set(name: str, *, frames: int = 16) -> tuple[SetSite, ...]:
    """Return the sites of a set.

    Args:
        name: One of `SETS`.
        frames: Of the smallest site of `endo700k`, at least a batch, to which the others are in proportion; of every
            video of `fedsurg`.

    Raises:
        ValueError: There is no such set, or no frame.
    """
    if name not in SETS:
        raise ValueError(f"set of sites {name!r} is unknown; known sets: {', '.join(SETS)}")
    if frames < 1:
        raise ValueError(f"a set of sites with {frames} frames a video would be empty")
    return SETS[name](frames)


def write_set_site(folder: Path, name: str, place: int, *, frames: int, seed: int, height: int, width: int) -> Path:
    """Render the site at a place of a set into `folder/<its name>`, unless it is there; return its site.yaml.

    Raises:
        ValueError: There is no such set or place.
    """
    sites = site_set(name, frames=frames)
    if not 0 <= place < len(sites):
        raise ValueError(f"set {name} has {len(sites)} sites, and site {place + 1} is asked for")
    site, seeds = sites[place], np.random.SeedSequence(seed).generate_state(len(sites))
    file = folder / site.name / "site.yaml"
    if file.is_file():
        return file
    return write_site(
        file.parent, look=site.look, seed=int(seeds[place]), layout=site.layout, task=site.task, videos=site.videos,
        frames_per_video=site.frames_per_video, height=height, width=width,
    )  # fmt: skip
