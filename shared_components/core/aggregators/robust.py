"""Aggregate robustly against a few faulty or malicious sites: median, trimmed mean, Krum, Multi-Krum, norm bound.

- Median and trimmed mean: Yin et al., ICML 2018 (arXiv 1803.01498).
- Krum and Multi-Krum: Blanchard et al., NeurIPS 2017 (arXiv 1703.02757).
- Norm bound: Sun et al., arXiv 1911.07963 ("norm thresholding of updates"). Here the bound follows the median norm of
  the round's updates, like Andrew et al., NeurIPS 2021 (arXiv 1905.03871), with the quantile one half.

All rules except the norm bound count every site once: a site could report a false number of samples.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shared_components.core.aggregators import mean
from shared_components.core.aggregators.mean import BLOCK
from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition, Pieces


def update_norm(pieces: Mapping[str, Tensor], shared: Pieces) -> float:
    """Return the Euclidean distance from the start of the round to a site's shared pieces (floats only), in float64."""
    return math.sqrt(sum(mean.squared_distance(pieces[name], shared[name]) for name in mean.parameter_names(shared)))


def shortened(pieces: Mapping[str, Tensor], shared: Pieces, factor: float) -> Pieces:
    """Return the pieces with their change multiplied by ``factor``; integer pieces are unchanged."""
    scaled = {name: pieces[name] for name in shared}
    for name in mean.parameter_names(scaled):
        start, end = shared[name].to(torch.float64), scaled[name]
        scaled[name] = (start + (end.to(torch.float64) - start) * factor).to(end.dtype)
    return scaled


@dataclass(frozen=True)
class BoundedMean(StatelessStart):
    """Mean weighted by samples, after updates that exceed the norm bound are shortened; without state."""

    times: float | None = 1.0  # bound as a multiple of the (lower) median norm of the updates; None: no bound

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the bounded mean; the report contains the bound, the norm of each site, and the factors below 1."""
        updates = mean.in_site_order(updates)
        norms = {update.site: update_norm(update.pieces, models.shared) for update in updates}
        # the lower median: with two updates, the longer one must not raise the bound
        bound = math.inf if self.times is None else self.times * statistics.median_low(norms.values())
        # Sun et al.: delta / max(1, |delta| / M)
        factors = {site: bound / norm for site, norm in norms.items() if norm > bound}
        bounded = [
            replace(u, pieces=shortened(u.pieces, models.shared, factors[u.site])) if u.site in factors else u
            for u in updates
        ]
        report = {"bound": bound if math.isfinite(bound) else None, "norms": norms, "factors": factors}
        shared = mean.mean_pieces(bounded, models.shared)
        return Aggregation(state, Models(shared, models.mixed), {"norm_bound": report})


Neighbours = Literal["n-f-2", "n-f-1"]
NEIGHBOURS: dict[Neighbours, int] = {"n-f-2": 2, "n-f-1": 1}  # subtracted from n - f


def trimmed_mean(tensors: Sequence[Tensor], trim: int) -> Tensor:
    """Return the coordinate-wise mean of K tensors without the ``trim`` smallest and the ``trim`` largest values.

    Means are computed in float64 and cast back. For integer tensors (step counters), the maximum is returned.
    """
    if not tensors[0].is_floating_point():
        return mean.weighted_sum(tensors, [1 / len(tensors)] * len(tensors))
    result = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
    order = list(comparisons(len(tensors)))
    blocks = mean.stacked_blocks(tensors, result.dtype)  # (K, n)
    for (out,), rows in zip(mean.in_blocks(result), blocks, strict=True):  # (n,)
        kept = _sorted(rows, order)[trim : len(tensors) - trim]
        total = kept[0].to(torch.float64)
        for row in kept[1:]:
            total += row
        out.copy_(total.div_(len(kept)))
    return result


def _sorted(rows: Tensor, order: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Return the rows of (K, n) with every column sorted, from the smallest to the largest; reuses the memory."""
    result, spare = list(rows), torch.empty_like(rows[0])
    for low, high in order:
        torch.minimum(result[low], result[high], out=spare)
        torch.maximum(result[low], result[high], out=result[high])
        result[low], spare = spare, result[low]
    return result


def comparisons(count: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a sorting network for ``count`` values: swap each pair if the first value is larger.

    Batcher's merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2, Algorithm M). The pairs do not depend on
    the values, so that whole tensors are sorted at once, some ten times faster than ``torch.sort``.
    """
    # p starts at the largest power of two below count and halves: sorted runs of length p are merged
    top = 1 << (count - 1).bit_length() - 1 if count > 1 else 0
    p = top
    while p:
        q, r, d = top, 0, p
        while True:
            yield from ((i, i + d) for i in range(count - d) if i & p == r)
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1


def squared_distances(sites: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> list[list[float]]:
    """Return the K x K squared Euclidean distances between the sites, over the named tensors, in float64."""
    total = torch.zeros(len(sites), len(sites), dtype=torch.float64)
    differences = torch.empty(len(sites), BLOCK, dtype=torch.float64)
    for name in names:
        for rows in mean.stacked_blocks([site[name] for site in sites]):  # (K, n)
            for i in range(len(sites) - 1):
                others = differences[i + 1 :, : rows.shape[1]]
                torch.sub(rows[i + 1 :], rows[i], out=others)
                total[i, i + 1 :] += others.square_().sum(1)
    return (total + total.T).tolist()


@dataclass(frozen=True)
class TrimmedMean(StatelessStart):
    """Coordinate-wise trimmed mean of the GLOBAL pieces, or median without ``trim``; without state."""

    trim: int | None = None

    @property
    def min_sites(self) -> int:
        """Minimum number of sites; the median of two would be their mean."""
        return 3 if self.trim is None else 2 * self.trim + 1

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the median or trimmed mean as the next shared model; ValueError for too few updates."""
        if len(updates) < self.min_sites:
            rule = "a median" if self.trim is None else f"a mean trimmed by {self.trim} at each end"
            raise ValueError(f"{rule} needs {self.min_sites} sites or more; this round has {len(updates)}")
        updates = mean.in_site_order(updates)
        trim = (len(updates) - 1) // 2 if self.trim is None else self.trim
        shared = {name: trimmed_mean([u.pieces[name] for u in updates], trim) for name in models.shared}
        return Aggregation(state, Models(shared, models.mixed))


@dataclass(frozen=True)
class Krum(StatelessStart):
    """Model of the site closest to its neighbours, or the mean of several such models; without state."""

    faults: int  # number f of faulty or malicious sites to tolerate; needs 2f + 3 sites
    keep: float | None = 1  # number of best sites to average; 1 is Krum, None is n - f, below 1 a share of n
    neighbours: Neighbours = "n-f-2"  # number of neighbours: ``n-f-2`` as in the paper, or ``n-f-1``

    @property
    def min_sites(self) -> int:
        return max(2 * self.faults + 3, math.ceil(self.keep or 1) + self.faults)

    def kept(self, count: int) -> int:
        """Return the number of averaged sites out of ``count``; a share is rounded half up, within 1 to n - f."""
        honest = count - self.faults
        if self.keep is None or self.keep >= 1:
            return int(self.keep or honest)
        return min(honest, max(1, math.floor(self.keep * count + 0.5)))

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Combine the chosen updates; the report has the chosen sites and all scores; ValueError for too few."""
        if len(updates) < self.min_sites:
            rule = f"Krum with {self.faults} faulty sites" + f" and keep {self.keep}" * ((self.keep or 1) > 1)
            raise ValueError(f"{rule} needs {self.min_sites} sites or more; this round has {len(updates)}")
        updates = mean.in_site_order(updates)
        nearest = len(updates) - self.faults - NEIGHBOURS[self.neighbours]
        distances = squared_distances([update.pieces for update in updates], mean.parameter_names(models.shared))
        # s(i): sum of squared distances to the n - f - 2 (or n - f - 1) nearest neighbours
        scores = [sum(sorted(row[:i] + row[i + 1 :])[:nearest]) for i, row in enumerate(distances)]
        best = sorted(range(len(updates)), key=scores.__getitem__)  # stable: the first site wins a tie
        chosen = [updates[i] for i in sorted(best[: self.kept(len(updates))])]
        shared = mean.weighted_pieces(chosen, [1 / len(chosen)] * len(chosen), models.shared)
        report = {
            "chosen": [update.site for update in chosen],
            "scores": {update.site: score for update, score in zip(updates, scores, strict=True)},
        }
        return Aggregation(state, Models(shared, models.mixed), {"krum": report})
