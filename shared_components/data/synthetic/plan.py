"""Which look, seed and layout the n-th synthetic site has; `surgfl render` and simulators agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared_components.data.synthetic.layouts import LAYOUTS
from shared_components.data.synthetic.looks import SITE_LOOKS, look_named

TARGETS: dict[str, tuple[str, ...]] = {
    "segmentation": ("label",),
    "depth": ("depth",),
    "reconstruction": (),
}
"""What a site needs beside its images, by its kind of task."""


@dataclass(frozen=True)
class SitePlan:
    """One site to render."""

    folder: Path
    look: str
    seed: int
    layout: str


def plan_sites(
    out: Path, *, sites: int, seed: int = 0, looks: Sequence[str] = SITE_LOOKS, layout: str = "auto"
) -> list[SitePlan]:
    """Plan `site-1`, `site-2`, ... below `out`, cycling through the looks and (`auto`) the layouts.

    Raises:
        ValueError: an unknown look, no site, or a negative seed.
    """
    if sites < 1 or seed < 0:
        raise ValueError(f"{sites} sites must be at least 1 and seed {seed} not negative")
    names = [look_named(name.strip()).name for name in looks]
    layouts = list(LAYOUTS) if layout == "auto" else [layout]
    seeds = np.random.SeedSequence(seed).generate_state(sites)
    return [
        SitePlan(out / f"site-{i + 1}", names[i % len(names)], int(seeds[i]), layouts[i % len(layouts)])
        for i in range(sites)
    ]
