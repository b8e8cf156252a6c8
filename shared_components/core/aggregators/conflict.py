"""Combine changes that pull in different directions: CAGrad, cross-attention and the weights that learn how much.

CAGrad: Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning, NeurIPS 2021 (arXiv 2110.14048).
Cross-attention between the sites' changes and hyper-weights: FedHCA2, Lu et al., CVPR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shared_components.core.aggregators.blocks import stacked_blocks
from shared_components.core.partition import Pieces

STEPS = 5000  # at most, in the search of CAGrad's weights
PRECISE = 1e-13  # the search ends where a step moves the weights less


def inner_products(all_pieces: Sequence[Pieces], names: Sequence[str]) -> Tensor:
    """Return (K, K) inner products of K sites' pieces, all names together, in float64."""
    products = torch.zeros(len(all_pieces), len(all_pieces), dtype=torch.float64)
    for name in names:
        for rows in stacked_blocks([pieces[name] for pieces in all_pieces]):  # (K, n)
            products += rows @ rows.T
    return products


def on_simplex(values: Tensor) -> Tensor:
    """Return the nearest point of which all entries are non-negative and sum to 1."""
    falling = values.sort(descending=True).values
    # the mean by which the k largest values exceed a sum of 1; the largest k that stays positive counts
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    return (values - excess[falling > excess][-1]).clamp_min(0)


def least_agreement(products: Tensor, conflict: float) -> Tensor:
    """Return the weights of CAGrad's inner problem: min over the simplex of g_w . g_0 + c |g_0| |g_w|.

    g_0 is the mean change and g_w the weighted one. The function is convex; steps go down its gradient, as
    far as it keeps falling, and back onto the simplex. The start is uniform and nothing is drawn.

    Args:
        products: (K, K) inner products of the changes, float64.
        conflict: c, in [0, 1).
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
            # backtrack until the value falls as far as the quadratic bound of a projected step says
            fallen = float(gradient @ move) + float(move @ move) / (2 * step)
            if value(there) <= here + fallen or step < PRECISE:
                break
            step /= 2
        if value(there) > here or float(move.abs().max()) < PRECISE:
            break
        weights, step = there, step * 2
    return weights


def conflict_averse(products: Tensor, conflict: float) -> Tensor:
    """Return (K,) coefficients of CAGrad's direction: U = sum_k u_k change_k.

    U = (g_0 + c |g_0| g_w / |g_w|) / (1 + c^2), with the weights w of :func:`least_agreement`.

    Args:
        products: (K, K) inner products of the changes, float64.
        conflict: c; 0 is the mean.
    """
    weights = least_agreement(products, conflict)
    uniform = torch.full_like(weights, 1 / len(weights))
    mean = max(float(uniform @ products @ uniform), 0.0) ** 0.5  # |g_0|; |g_w| is the next
    length = max(float(weights @ products @ weights), 0.0) ** 0.5
    share = conflict * mean / length if length > 0 else 0.0
    return (uniform + share * weights) / (1 + conflict**2)


def attention(changes: Sequence[Tensor]) -> Tensor:
    """Return (K, K) float64 rows, softmax over j of <change_i, change_j> / sqrt(D), of K tensors with D elements."""
    products = inner_products([{"change": change} for change in changes], ["change"])
    return torch.softmax(products * changes[0].numel() ** -0.5, dim=1)


def hyper_step(
    weights: Tensor, gradient: Tensor, momentum: Tensor, *, rate: float, decay: float, inertia: float
) -> tuple[Tensor, Tensor]:
    """Take a step of SGD with momentum and weight decay.

    ``gradient`` is that of weights clamped to [0, 1]; where a weight lies outside, only the decay moves it.

    Returns:
        The weights and the momentum after it.
    """
    inside = (weights >= 0) & (weights <= 1)
    # the gradient of a clamp is zero outside its bounds
    moved = inertia * momentum + torch.where(inside, gradient, 0.0) + decay * weights
    return weights - rate * moved, moved
