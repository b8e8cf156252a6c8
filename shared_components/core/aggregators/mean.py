"""The weighted mean (FedAvg, McMahan et al., AISTATS 2017) and the order in which every sum runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update, site_order
from shared_components.core.partition import Partition, Pieces


def in_site_order(updates: Sequence[Update]) -> list[Update]:
    """Sort updates by site, so that arrival order changes no bit of any sum."""
    by_site = {update.site: update for update in updates}
    if len(by_site) != len(updates):
        raise ValueError(f"several updates of one site among {[u.site for u in updates]}")
    return [by_site[site] for site in site_order(by_site)]


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float | Tensor]) -> Tensor:
    """Return sum_k w_k x_k, accumulated in float64 in the order given and cast back to the inputs' dtype.

    Integer tensors (step counters) are not averaged: their maximum is returned.

    Args:
        tensors: K tensors of one shape.
        weights: K numbers, or K tensors of the same shape for element-wise weights.
    """
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)
    total = tensors[0].to(torch.float64, copy=True).mul_(weights[0])
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        total += tensor.to(torch.float64, copy=True).mul_(weight)
    return total.to(tensors[0].dtype)


def mean_pieces(updates: Sequence[Update], names: Mapping[str, object]) -> Pieces:
    """Average the named pieces, each site weighted by its number of training samples (Eq. (1) of PFedSIS)."""
    updates = in_site_order(updates)
    total = sum(update.samples for update in updates)
    weights = [update.samples / total for update in updates]
    return {name: weighted_sum([u.pieces[name] for u in updates], weights) for name in names}


@dataclass(frozen=True)
class WeightedMean(StatelessStart):
    """Average the GLOBAL pieces by sample count; there is no state."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the mean of the updates as the next shared model."""
        return Aggregation(state, Models(mean_pieces(updates, models.shared), models.mixed))
