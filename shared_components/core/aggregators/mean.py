"""Compute the weighted mean (FedAvg, McMahan et al., AISTATS 2017) and other sums in site order, block by block.

Rules that compare all pairs of sites read the same numbers many times. Blocks fit a CPU cache and need only one small
buffer for any number of weights.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update, site_order
from shared_components.core.partition import Partition, Pieces

_STATISTIC = re.compile(r"(^|\.)running_(mean|var)(\[|$)")  # also rows of such a tensor
EXACT = frozenset({torch.float32, torch.float16, torch.bfloat16})  # float64 has the product of two numbers
BLOCK = 1 << 14  # elements per block: 128 KiB in float64


def in_blocks(*tensors: Tensor, size: int = BLOCK) -> Iterator[tuple[Tensor, ...]]:
    """Yield flat blocks of the same range of all tensors: views, or copies of tensors that are not contiguous."""
    return zip(*(tensor.reshape(-1).split(size) for tensor in tensors), strict=True)


def stacked_blocks(
    tensors: Sequence[Tensor], dtype: torch.dtype = torch.float64, *, size: int = BLOCK
) -> Iterator[Tensor]:
    """Yield the same range of K tensors as rows of a (K, n) buffer, which may be changed and is reused."""
    size = min(size, max(tensors[0].numel(), 1))
    buffer = torch.empty(len(tensors), size, dtype=dtype, device=tensors[0].device)
    for stretch in in_blocks(*tensors, size=size):
        rows = buffer[:, : len(stretch[0])]  # (K, n); the last block may be shorter
        for row, values in zip(rows, stretch, strict=True):
            row.copy_(values)
        yield rows


def columns(sites: int) -> int:
    """Return the number of elements of a block of which K sites' float64 rows fit a CPU cache, also several times."""
    return max(1 << 8, min(BLOCK, (1 << 16) // sites))


def squared_distance(a: Tensor, b: Tensor) -> float:
    """Return the sum of (a - b)^2 in float64."""
    return sum(float(rows[0].sub_(rows[1]).square_().sum()) for rows in stacked_blocks([a, b]))


def squared_norm(values: Tensor) -> float:
    """Return the sum of squares in float64."""
    return sum(float(rows[0].square_().sum()) for rows in stacked_blocks([values]))


def in_site_order(updates: Sequence[Update]) -> list[Update]:
    """Sort updates by site, so that sums do not depend on the order of arrival."""
    by_site = {update.site: update for update in updates}
    if len(by_site) != len(updates):
        raise ValueError(f"a site has several updates: {[u.site for u in updates]}; aggregate one update per site")
    return [by_site[site] for site in site_order(by_site)]


def parameter_names(pieces: Mapping[str, Tensor]) -> list[str]:
    """Return the names of floating-point pieces, without integer pieces such as batch counters."""
    return [name for name, value in pieces.items() if value.is_floating_point()]


def weight_names(pieces: Mapping[str, Tensor]) -> list[str]:
    """Return the `parameter_names` without BatchNorm statistics: a server optimizer could make a variance negative."""
    return [name for name in parameter_names(pieces) if not _STATISTIC.search(name)]


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float | Tensor]) -> Tensor:
    """Return sum_k w_k x_k, accumulated in float64 in the given order and cast to the dtype of the inputs.

    For integer tensors (step counters), the maximum is returned. Weights are numbers, or tensors of the inputs' shape.
    """
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)  # (K, ...) -> (...)
    result = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
    buffers = torch.empty(2, min(BLOCK, max(result.numel(), 1)), dtype=torch.float64, device=result.device)
    outs = result.reshape(-1).split(BLOCK)
    # the blocks of a tensor of weights, or the same number for every block
    factors = [w.reshape(-1).split(BLOCK) if isinstance(w, Tensor) else [w] * len(outs) for w in weights]
    for out, stretch, *block_weights in zip(outs, in_blocks(*tensors), *factors, strict=True):
        total, row = buffers[:, : len(out)]  # two rows fit the smallest cache, whatever the number of sites
        total.copy_(stretch[0]).mul_(block_weights[0])
        for values, weight in zip(stretch[1:], block_weights[1:], strict=True):
            total += row.copy_(values).mul_(weight)
        out.copy_(total)
    return result


def added(rows: Tensor) -> Tensor:
    """Return the sum of rows (K, n), added in this order whatever K is; the first row becomes the sum."""
    total = rows[0]
    for row in rows[1:]:
        total += row
    return total


def weighted_sums(tensors: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """Return the `weighted_sum` of K tensors for each of M rows of ``weights`` (M, K), bit by bit the same.

    The weights are float32 numbers, in float64. The product of two such numbers is exact, so that a fused multiply-add
    gives the same sum as two operations.
    """
    if tensors[0].dtype not in EXACT:
        return [weighted_sum(tensors, row.tolist()) for row in weights]
    results = [torch.empty_like(tensors[0], memory_format=torch.contiguous_format) for _ in weights]
    by_site, size = weights.T.contiguous(), columns(len(weights))  # (M, K) -> (K, M)
    for rows, outs in zip(stacked_blocks(tensors, size=size), in_blocks(*results, size=size), strict=True):
        totals = torch.outer(by_site[0], rows[0])  # (M,), (n,) -> (M, n)
        for own, row in zip(by_site[1:], rows[1:], strict=True):
            totals.addr_(own, row)
        for out, total in zip(outs, totals, strict=True):
            out.copy_(total)
    return results


def weighted_pieces(updates: Sequence[Update], weights: Sequence[float], names: Iterable[str]) -> Pieces:
    """Return the weighted sums of the named pieces over updates in site order."""
    return {name: weighted_sum([update.pieces[name] for update in updates], weights) for name in names}


def mean_pieces(updates: Sequence[Update], names: Iterable[str]) -> Pieces:
    """Return the mean of the named pieces, weighted by the sites' training samples (Eq. (1) of PFedSIS)."""
    updates = in_site_order(updates)
    total = sum(update.samples for update in updates)
    return weighted_pieces(updates, [update.samples / total for update in updates], names)


@dataclass(frozen=True)
class WeightedMean(StatelessStart):
    """Mean of the GLOBAL pieces, weighted by samples; without state."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        return Aggregation(state, Models(mean_pieces(updates, models.shared), models.mixed))


@dataclass(frozen=True)
class FirstSite(StatelessStart):
    """Pieces of the first site, which trains on pooled frames (centralised training), for all sites."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the first site's update as the next model; ValueError if it sent none."""
        first = site_order(models.mixed)[0]
        own = [update for update in updates if update.site == first]
        if not own:
            raise ValueError(f"{first} trains for all sites but sent no update; see its log")
        return Aggregation(state, Models(dict(own[0].pieces), models.mixed))


def normalised_entropy(entropy: float, sites: int) -> float:
    """Return an entropy in nats divided by its maximum, log(sites); 1 for a single site."""
    return entropy / math.log(sites) if sites > 1 else 1.0
