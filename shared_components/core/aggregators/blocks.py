"""Walk along tensors in blocks that fit a processor's cache.

A rule that compares every site with every other passes over the same numbers many times. In blocks its copies stay in
the cache, and extra memory is one small buffer whatever the number of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

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
