"""Client sampling: the sites that take part in a round."""

import math
import random
from collections.abc import Sequence


def sample_clients(sites: Sequence[str], round: int, *, fraction: float, seed: int, least: int = 1) -> list[str]:
    """Sample the sites of a round (from 0), in order; a repeated round has the same sites.

    ``fraction`` is the job's ``client_fraction``, and ``least`` the number of sites that the method needs.
    """
    nearest = math.floor(fraction * len(sites) + 0.5 + 1e-9)  # 0.35 x 10 is a half, too
    count = min(len(sites), max(1, least, nearest))
    if count == len(sites):
        return list(sites)
    draw = random.Random(f"{seed} {round}")  # nosec B311 # a repeatable draw, no secret
    return [sites[number] for number in sorted(draw.sample(range(len(sites)), count))]
