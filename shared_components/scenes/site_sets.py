"""Sets of rendered sites with the proportions and the differences of a paper's federation.

`endo700k` has the nine sites of FL-EndoViT's pre-training; their sizes differ up to 461-fold. `fedsurg` has four
centres with graded operations. The last centre never trains.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared_components.data.endo700k import PARTS
from shared_components.data.published import FL_ENDOVIT
from shared_components.scenes.site import write_site

IMAGES: dict[str, int] = {site: FL_ENDOVIT[dataset] for site, dataset in PARTS.items()}
"""Number of images of each part of Endo700k, by site."""
UNSEEN = "unseen"
"""Name of the site that is not part of the federation."""
_LONGEST = 10  # maximum length of a video, in shortest videos
# look and number of training videos: the proportions of FedSurg's public 10, 9 and 11, which would be too few for a
# network with random weights (measured). The videos of the unseen centre are for adaptation.
_CENTRES = {"centre-1": ("rose", 40), "centre-2": ("amber", 36), "centre-3": ("ivory", 44), UNSEEN: ("violet", 24)}


@dataclass(frozen=True)
class SetSite:
    """One site of a set, with arguments of `write_site`."""

    name: str
    look: str
    layout: str
    task: str
    videos: Mapping[str, int]
    frames_per_video: int


def _endo700k(frames: int) -> tuple[SetSite, ...]:
    """Return nine sites without labels; the smallest site trains on one video."""
    sites = []
    for name, count in IMAGES.items():
        images = round(frames * count / min(IMAGES.values()))
        videos = math.ceil(images / (frames * _LONGEST))
        split = {"train": videos, "validation": 1}
        sites.append(SetSite(name, name, "endovis2017", "reconstruction", split, round(images / videos)))
    return tuple(sites)


def _fedsurg(frames: int) -> tuple[SetSite, ...]:
    """Return four centres, each with one validation video and two test videos per grade."""
    return tuple(
        SetSite(name, look, "appendix300", "classification", {"train": train, "validation": 6, "test": 12}, frames)
        for name, (look, train) in _CENTRES.items()
    )


SETS: dict[str, Callable[[int], tuple[SetSite, ...]]] = {"endo700k": _endo700k, "fedsurg": _fedsurg}


def site_set(name: str, *, frames: int = 16) -> tuple[SetSite, ...]:
    """Return the sites of a set, a key of `SETS`; ValueError if the set is unknown or has no frames.

    `frames` are the frames of the smallest site of `endo700k`, at least a batch, or of every video of `fedsurg`.
    """
    if name not in SETS:
        raise ValueError(f"set of sites {name!r} is unknown; known sets: {', '.join(SETS)}")
    if frames < 1:
        raise ValueError(f"a set of sites with {frames} frames a video would be empty")
    return SETS[name](frames)


def write_set_site(folder: Path, name: str, place: int, *, frames: int, seed: int, height: int, width: int) -> Path:
    """Render the site at `place` of a set into `folder/<its name>`, unless it exists; return its site.yaml.

    ValueError if the set or the place is unknown.
    """
    sites = site_set(name, frames=frames)
    if not 0 <= place < len(sites):
        raise ValueError(f"set {name} has {len(sites)} sites, so there is no site {place + 1}")
    options, seeds = dict(vars(sites[place])), np.random.SeedSequence(seed).generate_state(len(sites))
    file = folder / options.pop("name") / "site.yaml"
    if file.is_file():
        return file
    return write_site(file.parent, seed=int(seeds[place]), height=height, width=width, **options)
