"""Weight sites by loss (q-FedAvg) or Fisher information (FedAS, CVPR 2024), or elements by sensitivity (PFedSIS).

q-FedAvg gives sites with a larger loss a larger weight (Li et al., ICLR 2020, arXiv 1905.10497, Algorithm 2). With the
loss F_k of site k at the received weights theta, and g_k = L (theta - theta_k):

    Delta_k = F_k^q g_k,   h_k = q F_k^(q-1) |g_k|^2 + L F_k^q,   theta <- theta - sum_k Delta_k / sum_k h_k

This is theta <- theta + sum_k a_k (theta_k - theta) with a_k = L F_k^q / sum_k h_k. The a_k sum to at most 1; their
sum is reported as ``step``. With q = 0 every a_k is 1 / K for any L, which is the unweighted mean.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from shared_components.core.aggregators import mean as sums
from shared_components.core.losses import pixel_cross_entropy
from shared_components.core.method import Aggregation, Batch, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition, Pieces
from shared_components.networks.parts import trained_parameters

Scale = Literal["raw", "relative"]  # scale of sensitivities
FLOOR = 1e-10  # minimum loss, so that F^(q-1) is finite; the released code adds it


def fair_weights(losses: Sequence[float], squares: Sequence[float], *, q: float, lipschitz: float) -> list[float]:
    """Return the weights a_k of sites with losses F_k > 0 and ``squares`` |theta - theta_k|^2; ``lipschitz`` is L."""
    gains = [lipschitz * loss**q for loss in losses]  # L F_k^q
    bounds = [
        q * loss ** (q - 1) * lipschitz**2 * square + gain
        for loss, square, gain in zip(losses, squares, gains, strict=True)
    ]  # h_k, with |g_k|^2 = L^2 |theta - theta_k|^2
    return [gain / sum(bounds) for gain in gains]


@dataclass(frozen=True)
class FairMean(StatelessStart):
    """Aggregator of q-FedAvg, without state; updates contain F_k as the extra ``loss``."""

    q: float
    lipschitz: float
    released: bool = False

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = sums.in_site_order(updates)
        shared, names = models.shared, sums.parameter_names(models.shared)
        squares = [sum(sums.squared_distance(shared[name], u.pieces[name]) for name in names) for u in updates]
        losses = [float(update.extras["loss"]["value"]) for update in updates]
        used = [max(loss, FLOOR) for loss in losses]
        if self.released:  # Flower evaluates one loss for all sites at the server; the mean over all frames replaces it
            total = sum(update.samples for update in updates)
            mean = sum(loss * u.samples for loss, u in zip(losses, updates, strict=True)) / total
            used = [mean + FLOOR] * len(losses)
        weights = fair_weights(used, squares, q=self.q, lipschitz=self.lipschitz)
        shares = [1 - sum(weights), *weights]  # the rest is the weight of the old model
        stepped = {
            name: sums.weighted_sum([old, *(u.pieces[name] for u in updates)], shares) for name, old in shared.items()
        }
        by_site = {
            name: {update.site: value for update, value in zip(updates, values, strict=True)}
            for name, values in (("loss", losses), ("weight", weights))
        }
        return Aggregation(state, Models(stepped, models.mixed), {"fairness": {"step": sum(weights), **by_site}})


GROUP = "fisher"  # extra with a site's trace


def fisher_trace(network: nn.Module, batches: Iterable[Batch]) -> float:
    """Return the trace of the empirical Fisher matrix of all trained parameters, with batches as samples.

    It sums |gradient of the batch's mean pixel cross-entropy|^2 in evaluation mode, and depends on the batch size.
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
    """Return weights proportional to the traces, at most ``largest``, with sum 1.

    Weight above the cap is distributed over the other sites in proportion to their traces. If all traces are zero, or
    if the cap is infeasible for K sites (largest * K <= 1), the weights are equal.
    """
    count, total = len(traces), math.fsum(traces)
    if not total > 0 or largest * count <= 1:
        return [1 / count] * count
    weights = [trace / total for trace in traces]  # F_k / sum of F
    capped: set[int] = set()
    while over := {i for i, weight in enumerate(weights) if i not in capped and weight > largest}:
        capped |= over  # the distributed weight may lift another site above the cap
        room = 1 - largest * len(capped)
        rest = math.fsum(traces[i] for i in range(count) if i not in capped)
        even = room / (count - len(capped))
        weights = [largest if i in capped else room * traces[i] / rest if rest > 0 else even for i in range(count)]
    return weights


@dataclass(frozen=True)
class FisherMean(StatelessStart):
    """Mean of the GLOBAL pieces, weighted by the sites' Fisher traces; without state."""

    largest: float = 1.0

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = sums.in_site_order(updates)
        traces = {update.site: float(update.extras[GROUP]["value"]) for update in updates}
        weights = fisher_weights(list(traces.values()), self.largest)
        shared = sums.weighted_pieces(updates, weights, models.shared)
        report = {"fisher": traces, "weights": dict(zip(traces, weights, strict=True))}
        return Aggregation(state, Models(shared, models.mixed), report)


def similarity_weights(
    sensitivities: Tensor, *, scale: Scale = "raw", temperature: float = 1.0
) -> tuple[Tensor, float]:
    """Return the element-wise softmax over sites, Eq. (14), (K, n) in float64, and the sum of its entropies in nats.

    ``sensitivities`` (K, n) are those of K sites in float64. The softmax depends on their scale: sensitivities far
    below 1 give plain averaging for any ratio. The scale ``raw`` is as published; ``relative`` first divides by the
    mean over sites, so that only the ratio counts (our variant). The temperature is 1 as published.
    """
    if scale == "relative":
        mean = sensitivities.mean(0, keepdim=True)
        sensitivities = sensitivities / mean.masked_fill(mean == 0, 1.0)  # all are zero there
    exponents = sensitivities / temperature
    weights = torch.softmax(exponents, dim=0)  # Eq. (14)
    # log w = exponent - largest exponent + log of the largest weight; without a logarithm for each element
    distances = exponents.sub_(exponents.amax(0)).mul_(weights)
    return weights, -float(distances.sum() + weights.amax(0).log().sum())


def similarity_mean(
    updates: Sequence[Update], names: Sequence[str], *, scale: Scale, temperature: float
) -> tuple[Pieces, dict[str, float]]:
    """Return the element-wise weighted sum of the sites' pieces, Eq. (15), and normalised entropies by scale."""
    updates = sums.in_site_order(updates)
    pieces, totals, size = {}, dict.fromkeys(get_args(Scale), 0.0), sums.columns(len(updates))
    for name in names:
        values = [update.pieces[name] for update in updates]
        pieces[name] = torch.empty_like(values[0], memory_format=torch.contiguous_format)
        sensitivities = sums.stacked_blocks([u.extras["sensitivity"][name] for u in updates], size=size)
        blocks = pieces[name].reshape(-1).split(size), sums.stacked_blocks(values, size=size), sensitivities
        for out, rows, measured in zip(*blocks, strict=True):  # (n,), (K, n), (K, n)
            for other in get_args(Scale):
                weights, entropy = similarity_weights(measured, scale=other, temperature=temperature)
                totals[other] += entropy
                if other == scale:
                    out.copy_(sums.added(rows.mul_(weights)))  # Eq. (15)
        if not values[0].is_floating_point():
            pieces[name] = sums.weighted_sum(values, [1.0] * len(values))
    elements = max(sum(updates[0].pieces[name].numel() for name in names), 1)
    return pieces, {other: sums.normalised_entropy(total / elements, len(updates)) for other, total in totals.items()}
