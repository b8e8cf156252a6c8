"""The mean of updates that were shortened to a bound: no site moves the shared model further than the middle one.

Sun et al., Can You Really Backdoor Federated Learning?, arXiv 1911.07963 ("norm thresholding of
updates"). They choose the bound beforehand; here it follows the median norm of the round's own updates, the
quantile of one half that Andrew et al., NeurIPS 2021 (arXiv 1905.03871) let the bound of their clipping follow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from shared_components.core.aggregators.blocks import squared_distance
from shared_components.core.aggregators.mean import in_site_order, mean_pieces, parameter_names
from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition, Pieces


def update_norm(pieces: Pieces, shared: Pieces) -> float:
    """Return the Euclidean distance of a site's shared pieces from what the round began with, in float64.

    Integer pieces (step counters) do not count.
    """
    return math.sqrt(sum(squared_distance(pieces[name], shared[name]) for name in parameter_names(shared)))


def shortened(pieces: Pieces, shared: Pieces, factor: float) -> Pieces:
    """Return the pieces that went only ``factor`` of the way; integer ones as they are."""
    found = {name: pieces[name] for name in shared}
    for name in parameter_names(found):
        start, end = shared[name].to(torch.float64), found[name]
        found[name] = (start + (end.to(torch.float64) - start) * factor).to(end.dtype)
    return found


@dataclass(frozen=True)
class BoundedMean(StatelessStart):
    """Shorten updates that are longer than the bound, then take the mean weighted by samples. There is no state.

    Attributes:
        times: The bound, in median norms of the round's updates (of an even number, the lower of the two in the
            middle); None: no bound, which is the weighted mean bit for bit.
    """

    times: float | None = 1.0

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the bounded mean; the report has the bound, every site's norm, and the factors below 1."""
        updates = in_site_order(updates)
        norms = {update.site: update_norm(update.pieces, models.shared) for update in updates}
        # the lower median: of two updates the longer must not lift the bound
        bound = math.inf if self.times is None else self.times * statistics.median_low(norms.values())
        # Sun et al.: delta / max(1, |delta| / M)
        factors = {site: bound / norm for site, norm in norms.items() if norm > bound}
        bounded = [
            replace(u, pieces=shortened(u.pieces, models.shared, factors[u.site])) if u.site in factors else u
            for u in updates
        ]
        report = {"bound": bound if math.isfinite(bound) else None, "norms": norms, "factors": factors}
        shared = mean_pieces(bounded, models.shared)
        return Aggregation(state, Models(shared, models.mixed), {"norm_bound": report})
