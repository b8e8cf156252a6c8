"""The weighted mean (FedAvg, McMahan et al., AISTATS 2017), the order in which every sum runs, and blocks of tensors.

A rule that compares every site with every other passes over the same numbers many times. In blocks that fit a
processor's cache its copies stay there, and extra memory is one small buffer whatever the number of weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update, site_order
from shared_components.core.partition import Partition, Pieces

_STATISTIC = re.compile(r"(^|\.)running_(mean|var)(\[|$)")  # of the rows of one, too
BLOCK = 1 << 14  # elements of one tensor in a block: 128 KiB in float64


def in_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same stretch of all tensors as flat views, block after block; what is not contiguous is copied."""
    return zip(*(tensor.reshape(-1).split(BLOCK) for tensor in tensors), strict=True)


def stacked_blocks(tensors: Sequence[Tensor], dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    """Yield the same stretch of K tensors as rows of one (K, n) buffer, block after block.

    The buffer is used again: its rows may be changed, and hold until the next block.
    """
    size = min(BLOCK, tensors[0].numel())
    buffer = torch.empty(len(tensors), size, dtype=dtype, device=tensors[0].device)
    for stretch in in_blocks(*tensors):
        rows = buffer[:, : len(stretch[0])]  # (K, n); the last block may be shorter
        for row, values in zip(rows, stretch, strict=True):
            row.copy_(values)
        yield rows


def squared_distance(a: Tensor, b: Tensor) -> float:
    """Return the sum of (a - b)^2 in float64."""
    return sum(float((rows[0] - rows[1]).square_().sum()) for rows in stacked_blocks([a, b]))


def in_site_order(updates: Sequence[Update]) -> list[Update]:
    """Sort updates by site, so that arrival order changes no bit of any sum."""
    by_site = {update.site: update for update in updates}
    if len(by_site) != len(updates):
        raise ValueError(f"several updates of one site among {[u.site for u in updates]}")
    return [by_site[site] for site in site_order(by_site)]


def parameter_names(pieces: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the floating-point pieces; integers, such as counts of batches, are no parameters."""
    return [name for name, value in pieces.items() if value.is_floating_point()]


def weight_names(pieces: Mapping[str, Tensor]) -> list[str]:
    """Return the names of `parameter_names` that gradients move: without the statistics of BatchNorm layers.

    A step of the server's own beyond their mean would make a variance negative.
    """
    return [name for name in parameter_names(pieces) if not _STATISTIC.search(name)]


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float | Tensor]) -> Tensor:
    """Return sum_k w_k x_k, accumulated in float64 in the order given and cast back to the inputs' dtype.

    Integer tensors (step counters) are not averaged: their maximum is returned.

    Args:
        tensors: K tensors of one shape.
        weights: K numbers, or K tensors of the same shape for element-wise weights.
    """
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)  # (K, ...) -> (...)
    total = tensors[0].to(torch.float64, copy=True).mul_(weights[0])
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        total += tensor.to(torch.float64, copy=True).mul_(weight)
    return total.to(tensors[0].dtype)


def weighted_pieces(updates: Sequence[Update], weights: Sequence[float], names: Iterable[str]) -> Pieces:
    """Return the weighted sum of the named pieces over updates that are in site order."""
    return {name: weighted_sum([update.pieces[name] for update in updates], weights) for name in names}


def mean_pieces(updates: Sequence[Update], names: Iterable[str]) -> Pieces:
    """Average the named pieces, each site weighted by its number of training samples (Eq. (1) of PFedSIS)."""
    updates = in_site_order(updates)
    total = sum(update.samples for update in updates)
    return weighted_pieces(updates, [update.samples / total for update in updates], names)


@dataclass(frozen=True)
class WeightedMean(StatelessStart):
    """Average the GLOBAL pieces by sample count; there is no state."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the mean of the updates as the next shared model."""
        return Aggregation(state, Models(mean_pieces(updates, models.shared), models.mixed))


@dataclass(frozen=True)
class FirstSite(StatelessStart):
    """Send the first site's pieces to everybody: it trains on pooled frames (centralised training)."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the first site's update as the next model.

        Raises:
            ValueError: It is not among the updates.
        """
        first = site_order(models.mixed)[0]
        found = [update for update in updates if update.site == first]
        if not found:
            raise ValueError(f"{first} trains for all sites and sent no update; see its log")
        return Aggregation(state, Models(dict(found[0].pieces), models.mixed))


def normalised_entropy(entropy: float, sites: int) -> float:
    """Divide an entropy in nats by its maximum, log(sites); that of one site is 1."""
    return entropy / math.log(sites) if sites > 1 else 1.0
