"""Combine conflicting changes: CAGrad, cross-attention, learned weights, layer-wise decomposition.

- CAGrad: Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning, NeurIPS 2021 (arXiv 2110.14048).
- Cross-attention between the sites' changes, and hyper-weights: FedHCA2, Lu et al., CVPR 2024.
- Layer-wise decomposition: FedLD, Zeng et al., MICCAI 2024. Principal directions of a layer's changes, weighted by
  singular values, represent agreement between sites. Each site's change is rebuilt from its projections on these
  directions, with its own length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import in_site_order, mean_pieces, stacked_blocks
from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition, Pieces

STEPS = 5000  # maximum steps of the search for CAGrad's weights
PRECISE = 1e-13  # the search ends if a step changes the weights by less


def inner_products(all_pieces: Sequence[Pieces], names: Sequence[str]) -> Tensor:
    """Return (K, K) inner products of K sites' pieces, summed over the names, in float64."""
    products = torch.zeros(len(all_pieces), len(all_pieces), dtype=torch.float64)
    for name in names:
        for rows in stacked_blocks([pieces[name] for pieces in all_pieces]):  # (K, n)
            products += rows @ rows.T
    return products


def on_simplex(values: Tensor) -> Tensor:
    """Return the projection onto the simplex: entries are not negative and sum to 1."""
    falling = values.sort(descending=True).values
    # mean excess of the k largest values over a sum of 1; the largest k with a positive result counts
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    return (values - excess[falling > excess][-1]).clamp_min(0)


def least_agreement(products: Tensor, conflict: float) -> Tensor:
    """Return the weights of CAGrad's inner problem: min over the simplex of g_w . g_0 + c |g_0| |g_w|.

    g_0 is the mean change and g_w the weighted change. The function is convex; the search is projected gradient descent
    with backtracking from uniform weights, without randomness. ``products`` are (K, K) inner products of the changes in
    float64, and ``conflict`` is c in [0, 1).
    """
    count = len(products)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    scale = float(products.diagonal().mean())
    if count == 1 or not scale > 0:
        return weights
    table = products / scale  # the weights do not depend on the scale of the changes
    mean = table.mean(1)  # table @ uniform weights
    radius = conflict * max(float(table.mean()), 0.0) ** 0.5

    def value(w: Tensor) -> float:
        return float(w @ mean) + radius * max(float(w @ table @ w), 0.0) ** 0.5

    def slope(w: Tensor) -> Tensor:
        length = max(float(w @ table @ w), 1e-16) ** 0.5
        return mean + radius / length * (table @ w)

    step = 1.0
    for _ in range(STEPS):
        here, gradient = value(weights), slope(weights)
        while True:
            there = on_simplex(weights - step * gradient)
            move = there - weights
            # backtrack until the value falls below the quadratic bound of a projected step
            fallen = float(gradient @ move) + float(move @ move) / (2 * step)
            if value(there) <= here + fallen or step < PRECISE:
                break
            step /= 2
        if value(there) > here or float(move.abs().max()) < PRECISE:
            break
        weights, step = there, step * 2
    return weights


def conflict_averse(products: Tensor, conflict: float) -> Tensor:
    """Return the coefficients (K,) of CAGrad's direction U = sum_k u_k change_k.

    U = (g_0 + c |g_0| g_w / |g_w|) / (1 + c^2), with the weights w of :func:`least_agreement`; c = 0 gives the mean.
    """
    weights = least_agreement(products, conflict)
    uniform = torch.full_like(weights, 1 / len(weights))
    mean = max(float(uniform @ products @ uniform), 0.0) ** 0.5  # |g_0|; the next line is |g_w|
    length = max(float(weights @ products @ weights), 0.0) ** 0.5
    share = conflict * mean / length if length > 0 else 0.0
    return (uniform + share * weights) / (1 + conflict**2)


def attention(changes: Sequence[Tensor]) -> Tensor:
    """Return (K, K) float64: softmax over j of <change_i, change_j> / sqrt(D), for K tensors of D elements."""
    products = inner_products([{"change": change} for change in changes], ["change"])
    return torch.softmax(products * changes[0].numel() ** -0.5, dim=1)


def hyper_step(
    weights: Tensor, gradient: Tensor, momentum: Tensor, *, rate: float, decay: float, inertia: float
) -> tuple[Tensor, Tensor]:
    """Return weights and momentum after SGD with decay; the gradient is for weights clamped to [0, 1]."""
    inside = (weights >= 0) & (weights <= 1)
    # the gradient of a clamp is zero outside its bounds
    moved = inertia * momentum + torch.where(inside, gradient, 0.0) + decay * weights
    return weights - rate * moved, moved


TINY = 1e-12


def decomposed(changes: Tensor, *, keep: float = 0.8) -> Tensor:
    """Rebuild one layer's mean change (d,) in float64 from the principal directions of the sites' changes (m, d).

    With G = changes and eigenvectors e_j of H = G G^T / m, the directions are w_j = G^T e_j, with the sign for which
    most sites have a positive product. Site k becomes the sum over j of s_j / (sum of s) ||g_k|| p_kj / ||p_kj||, where
    p_kj is the projection of g_k on w_j. The result is the mean over the sites. The sum of s includes the singular
    values of dropped directions, so that dropping shortens the step. The result is ambiguous only for equal singular
    values. ``keep`` is the fraction of the m directions to keep, rounded down, at least one.
    """
    G = changes.to(torch.float64)
    m = len(G)
    values, vectors = torch.linalg.eigh(G @ G.T / m)  # ascending
    shares = values.clamp_min(0) / values.clamp_min(0).sum().clamp_min(TINY)  # relative to all m, as released
    count = max(1, int(keep * m))
    shares, vectors = shares.flip(0)[:count], vectors.flip(1)[:, :count]  # (k,), (m, k)
    directions = vectors.T @ G  # (k, d)
    products = G @ directions.T  # (m, k)
    turn = torch.where((products > 0).sum(0) * 2 < m, -1.0, 1.0).to(torch.float64)
    lengths = directions.norm(dim=1)
    units = directions * (turn / lengths.clamp_min(TINY))[:, None]
    # a projection on w_j divided by its length is +-w_j / ||w_j||, or zero for a zero projection
    signs = torch.sign(products * turn) * (lengths > TINY) * (products.abs() > TINY * lengths)
    weights = (G.norm(dim=1)[:, None] * signs * shares).mean(0)  # (k,)
    return weights @ units


@dataclass(frozen=True)
class LayerwiseDecomposition(StatelessStart):
    """Mean in the first round; later, tensors move by their decomposed change; the state is the history of changes."""

    keep: float = 0.8
    decay: float = 0.99

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = in_site_order(updates)
        mean = mean_pieces(updates, models.shared)
        shared, history = {}, {}
        for name, before in models.shared.items():
            if not before.is_floating_point():
                shared[name] = mean[name]
                continue
            past = state.get(f"history/{name}")
            if past is None or len(updates) == 1 or not bool(past.any()):
                shared[name] = mean[name]
                moved = mean[name].to(torch.float64) - before.to(torch.float64)
            else:
                # m changes (...) -> (m, d) -> (d,) -> (...)
                rows = [(u.pieces[name].to(torch.float64) - before.to(torch.float64)).flatten() for u in updates]
                moved = decomposed(torch.stack(rows), keep=self.keep).view(before.shape)
                shared[name] = (before.to(torch.float64) + moved).to(before.dtype)
            before_moved = torch.zeros_like(moved) if past is None else past.to(torch.float64)
            history[f"history/{name}"] = (self.decay * before_moved + moved).to(before.dtype)
        return Aggregation(history, Models(shared, models.mixed))
