"""Which look, seed, task and layout the n-th synthetic site has; `surgfl render` and simulators agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared_components.data.synthetic.frame_times import TARGETS
from shared_components.data.synthetic.layouts import LAYOUTS
from shared_components.data.synthetic.looks import SITE_LOOKS, look_named


@dataclass(frozen=True)
class SitePlan:
    """One site to render."""

    folder: Path
    look: str
    seed: int
    layout: str
    task: str = "segmentation"


def plan_sites(
    out: Path,
    *,
    sites: int,
    seed: int = 0,
    looks: Sequence[str] = SITE_LOOKS,
    layout: str = "auto",
    tasks: Sequence[str] = ("segmentation",),
) -> list[SitePlan]:
    """Plan `site-1`, `site-2`, ... below `out`, cycling through looks, tasks and (`auto`) the task's layouts.

    Layouts whose sites do not fit the others, in their classes or for want of videos, have no turn.

    Raises:
        ValueError: an unknown look or task, a layout that cannot hold a task, no site, or a negative seed.
    """
    if sites < 1 or seed < 0:
        raise ValueError(f"{sites} sites must be at least 1 and seed {seed} not negative")
    names = [look_named(name.strip()).name for name in looks]
    fitting = [(task.strip(), layouts_for(task.strip())) for task in tasks]
    for task, layouts in fitting:
        if layout not in ("auto", *layouts):
            raise ValueError(f"layout {layout!r} cannot hold {task}; layouts for it: {', '.join(layouts)}")
    seeds = np.random.SeedSequence(seed).generate_state(sites)
    plans = []
    for i in range(sites):
        task, layouts = fitting[i % len(fitting)]
        turns = [name for name in layouts if not LAYOUTS[name].asked]
        own = turns[i % len(turns)] if layout == "auto" else layout
        plans.append(SitePlan(out / f"site-{i + 1}", names[i % len(names)], int(seeds[i]), own, task))
    return plans


def layouts_for(task: str) -> list[str]:
    """List the layouts that can hold a task's sites.

    Raises:
        ValueError: the task is unknown.
    """
    if task not in TARGETS:
        raise ValueError(f"task {task!r} is unknown; sites are rendered for {', '.join(TARGETS)}")
    return [name for name, style in LAYOUTS.items() if set(TARGETS[task]) <= {style.target}]
