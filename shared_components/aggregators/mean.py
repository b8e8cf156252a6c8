"""The weighted mean (FedAvg, McMahan et al., AISTATS 2017) and the order in which every sum runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from shared_components.aggregators.blocks import in_blocks, stacked_blocks
from shared_components.method import Aggregation, Models, Profile, State, Update, site_order
from shared_components.partition import Partition, Pieces


def in_site_order(updates: Sequence[Update]) -> list[Update]:
    """Sort updates by site, so that arrival order changes no bit of any sum."""
    by_site = {update.site: update for update in updates}
    if len(by_site) != len(updates):
        raise ValueError(f"several updates of one site among {[u.site for u in updates]}")
    return [by_site[site] for site in site_order(by_site)]


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float | Tensor]) -> Tensor:
    """Return sum_k w_k x_k, accumulated in float64 in the order given and cast back to the inputs' dtype.

    Integer tensors (step counters) are not averaged: their maximum is returned. The sum runs in blocks that stay
    in the cache, which changes no bit of it.

    Args:
        tensors: K tensors of one shape.
        weights: K numbers, or K tensors of the same shape for element-wise weights.
    """
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)
    result = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
    for (out,), rows, factors in zip(
        in_blocks(result), stacked_blocks(tensors), _factors(weights, result), strict=False
    ):
        total, *others = rows.mul_(factors)
        for row in others:
            total += row
        out.copy_(total)
    return result


def _factors(weights: Sequence[float | Tensor], like: Tensor) -> Iterable[Tensor]:
    """Return for every block the weights of its K rows: (K, 1), or (K, n) where they are element-wise."""
    if any(isinstance(weight, Tensor) and weight.shape for weight in weights):
        return stacked_blocks([torch.as_tensor(weight).expand_as(like) for weight in weights])
    column = torch.tensor([float(weight) for weight in weights], dtype=torch.float64, device=like.device)
    return repeat(column.unsqueeze(1))


def mean_pieces(updates: Sequence[Update], names: Mapping[str, object]) -> Pieces:
    """Average the named pieces, each site weighted by its number of training samples (Eq. (1) of PFedSIS)."""
    updates = in_site_order(updates)
    total = sum(update.samples for update in updates)
    weights = [update.samples / total for update in updates]
    return {name: weighted_sum([u.pieces[name] for u in updates], weights) for name in names}


@dataclass(frozen=True)
class WeightedMean:
    """Average the GLOBAL pieces by sample count; there is no state."""

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the empty state."""
        return {}

    def apply(
        self, state: State, partition: Partition, models: Models, updates: Sequence[Update]
    ) -> Aggregation:
        """Return the mean of the updates as the next shared model."""
        return Aggregation(state, Models(mean_pieces(updates, models.shared), models.mixed))
