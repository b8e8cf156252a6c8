"""Client sampling: the sites that take part in a round."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence


def sample_clients(sites: Sequence[str], round: int, *, fraction: float, seed: int, least: int = 1) -> list[str]:
    """Sample the sites of a round (from 0), in their order; a round that is run again has the same sites.

    Args:
        sites: All sites of the run.
        round: Counted from 0.
        fraction: The job's ``client_fraction``.
        seed: The training's.
        least: How many sites the method needs.
    """
    nearest = math.floor(fraction * len(sites) + 0.5 + 1e-9)  # 0.35 x 10 is a half, too
    count = min(len(sites), max(1, least, nearest))
    if count == len(sites):
        return list(sites)
    draw = random.Random(f"{seed} {round}")  # nosec B311 # a draw that can be repeated, no secret
    return [sites[number] for number in sorted(draw.sample(range(len(sites)), count))]
