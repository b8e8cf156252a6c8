"""q-FedAvg: sites with a larger loss count for more (Li et al., ICLR 2020, arXiv 1905.10497, Algorithm 2).

With F_k the loss of site k at the weights theta that it received, and g_k = L (theta - theta_k):

    Delta_k = F_k^q g_k,   h_k = q F_k^(q-1) |g_k|^2 + L F_k^q,   theta <- theta - sum_k Delta_k / sum_k h_k

which is theta <- theta + sum_k a_k (theta_k - theta) with a_k = L F_k^q / sum_k h_k. The a_k sum to at most 1;
their sum is reported as ``step``. With q = 0 every a_k is 1 / K, whatever L: the mean that counts sites once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared_components.core.aggregators.blocks import squared_distance
from shared_components.core.aggregators.mean import in_site_order, parameter_names, weighted_sum
from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition

FLOOR = 1e-10  # of a loss, so that F^(q-1) stays finite; the released code adds it


def fair_weights(losses: Sequence[float], squares: Sequence[float], *, q: float, lipschitz: float) -> list[float]:
    """Return a_k of every site.

    Args:
        losses: F_k, positive.
        squares: |theta - theta_k|^2.
        q: 0 counts sites alike; the larger, the more a large loss counts.
        lipschitz: L, one over the step size.
    """
    gains = [lipschitz * loss**q for loss in losses]  # L F_k^q
    bounds = [
        q * loss ** (q - 1) * lipschitz**2 * square + gain
        for loss, square, gain in zip(losses, squares, gains, strict=True)
    ]  # h_k, where |g_k|^2 = L^2 |theta - theta_k|^2
    return [gain / sum(bounds) for gain in gains]


@dataclass(frozen=True)
class FairMean(StatelessStart):
    """The server's step of q-FedAvg. There is no state; updates carry F_k as the extra ``loss``."""

    q: float
    lipschitz: float
    released: bool = False

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Step from the shared model; integer buffers take their maximum."""
        updates = in_site_order(updates)
        shared, names = models.shared, parameter_names(models.shared)
        squares = [sum(squared_distance(shared[name], u.pieces[name]) for name in names) for u in updates]
        losses = [float(update.extras["loss"]["value"]) for update in updates]
        weights = fair_weights(self._used(losses, updates), squares, q=self.q, lipschitz=self.lipschitz)
        shares = [1 - sum(weights), *weights]  # the rest is of the weights that were sent
        stepped = {
            name: weighted_sum([old, *(u.pieces[name] for u in updates)], shares) for name, old in shared.items()
        }
        sites = [update.site for update in updates]
        report = {
            "step": sum(weights),
            "loss": dict(zip(sites, losses, strict=True)),
            "weight": dict(zip(sites, weights, strict=True)),
        }
        return Aggregation(state, Models(stepped, models.mixed), {"fairness": report})

    def _used(self, losses: Sequence[float], updates: Sequence[Update]) -> list[float]:
        if not self.released:
            return [max(loss, FLOOR) for loss in losses]
        # Flower evaluates one loss at the server, for all sites; the mean over all frames stands in for it
        total = sum(update.samples for update in updates)
        mean = sum(loss * u.samples for loss, u in zip(losses, updates, strict=True)) / total
        return [mean + FLOOR] * len(losses)
