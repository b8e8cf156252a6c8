"""Weigh sites by their losses (q-FedAvg) or by the Fisher information of their models (FedAS, Yang et al., CVPR 2024).

q-FedAvg: sites with a larger loss count for more (Li et al., ICLR 2020, arXiv 1905.10497, Algorithm 2).
With F_k the loss of site k at the weights theta that it received, and g_k = L (theta - theta_k):

    Delta_k = F_k^q g_k,   h_k = q F_k^(q-1) |g_k|^2 + L F_k^q,   theta <- theta - sum_k Delta_k / sum_k h_k

which is theta <- theta + sum_k a_k (theta_k - theta) with a_k = L F_k^q / sum_k h_k. The a_k sum to at most 1;
their sum is reported as ``step``. With q = 0 every a_k is 1 / K, whatever L: the mean that counts sites once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shared_components.core.aggregators.mean import (
    in_site_order,
    parameter_names,
    squared_distance,
    weighted_pieces,
    weighted_sum,
)
from shared_components.core.losses import pixel_cross_entropy
from shared_components.core.method import Aggregation, Batch, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition
from shared_components.networks.parts import trained_parameters

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


GROUP = "fisher"  # the extra in which a site sends its trace


def fisher_trace(network: nn.Module, batches: Iterable[Batch]) -> float:
    """Return the trace of the empirical Fisher matrix of all trained parameters, with batches for samples.

    It is the sum over batches of |gradient of the batch's mean pixel cross-entropy|^2, dropout off, and depends on
    the batch size.
    """
    parameters = list(trained_parameters(network).values())
    was_training, total = network.training, 0.0
    network.eval()
    for batch in batches:
        loss = pixel_cross_entropy(network(batch["image"]).float(), batch["label"])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        total += sum(float(g.detach().double().square().sum()) for g in gradients if g is not None)
    network.train(was_training)
    return total


def fisher_weights(traces: Sequence[float], largest: float = 1.0) -> list[float]:
    """Return weights in proportion to the traces, none above ``largest``, that sum to 1.

    What is cut off goes to the other sites in proportion to their traces. Traces that are all zero give equal weights,
    and so does a cap that K sites cannot keep (largest * K <= 1).
    """
    count, total = len(traces), math.fsum(traces)
    if not total > 0 or largest * count <= 1:
        return [1 / count] * count
    weights = [trace / total for trace in traces]  # F_k / sum of F
    capped: set[int] = set()
    while over := {i for i, weight in enumerate(weights) if i not in capped and weight > largest}:
        capped |= over  # what the others take over may lift one of them above the cap
        room = 1 - largest * len(capped)
        rest = math.fsum(traces[i] for i in range(count) if i not in capped)
        even = room / (count - len(capped))
        weights = [largest if i in capped else room * traces[i] / rest if rest > 0 else even for i in range(count)]
    return weights


@dataclass(frozen=True)
class FisherMean(StatelessStart):
    """Average the GLOBAL pieces with weights in proportion to the sites' traces; there is no state."""

    largest: float = 1.0

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return sum_k fisher_k theta_k / sum_k fisher_k, and the weights for the record."""
        updates = in_site_order(updates)
        traces = {update.site: float(update.extras[GROUP]["value"]) for update in updates}
        weights = fisher_weights(list(traces.values()), self.largest)
        shared = weighted_pieces(updates, weights, models.shared)
        report = {"fisher": traces, "weights": dict(zip(traces, weights, strict=True))}
        return Aggregation(state, Models(shared, models.mixed), report)
