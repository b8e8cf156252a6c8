"""The first convolutions of an FPN decoder's branches, of the feature maps themselves: fewer multiplications.

Everything before the first normalisation of a branch is linear: lateral 1x1 convolutions, nearest doubling, sums and a
3x3 convolution. So the 3x3 convolution of 256 channels is the sum of one convolution per feature map, of the map's own
channels at the map's own resolution, whose kernels are products of both convolutions' weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Kernels = list[Tensor]
"""Of one branch: of a 3x3 convolution of its own map; then of transposed convolutions of coarser ones."""


def upsampled_kernel(kernel: Tensor, factor: int) -> Tensor:
    """Return the kernel of the transposed convolution, of stride `factor`, that equals enlarging and then convolving.

    A 3x3 convolution of a map that was enlarged by nearest neighbours gives most of its weights to copies of one pixel.
    They are added beforehand: (C_in, C_out, 3, 3) -> (C_in, C_out, factor + 2, factor + 2); the padding is 1 in both.
    """
    copy = torch.arange(factor + 2)[:, None] + torch.arange(3) - 2  # of the pixel, under each row of the old kernel
    added = ((copy >= 0) & (copy < factor)).to(kernel)  # (factor + 2, 3)
    return (kernel.flatten(2) @ torch.kron(added, added).T).unflatten(2, (factor + 2, factor + 2))


def merged_kernels(laterals: Sequence[nn.Conv2d], firsts: Sequence[nn.Conv2d]) -> list[Kernels]:
    """Return the kernels that `first_convolutions` takes.

    Args:
        laterals: The four 1x1 convolutions, coarsest map first.
        firsts: The first convolution of each branch, 3x3 without bias.
    """
    widths = [lateral.in_channels for lateral in laterals]
    ends = list(accumulate(widths))
    weights = torch.cat([lateral.weight.flatten(1) for lateral in laterals], 1)  # (256, C_5 + C_4 + C_3 + C_2)
    biases = torch.stack([lateral.bias for lateral in laterals if lateral.bias is not None]).cumsum(0)  # (4, 256)
    merged = []
    for level, first in enumerate(firsts):
        into = torch.cat([weights[:, : ends[level]], biases[level][:, None]], 1)  # (256, C + 1)
        kernels = (into.T @ first.weight.transpose(0, 1).flatten(1)).unflatten(1, (-1, 3, 3))  # (C + 1, 128, 3, 3)
        begin = 0 if level < 2 else ends[level - 1]  # of the own map's channels: at level 1 the coarsest belong to it
        found = [kernels[begin:].transpose(0, 1)]
        if level >= 2:
            found.append(upsampled_kernel(kernels[: ends[1]], 2 ** (level - 1)))
        if level == 3:
            found.append(upsampled_kernel(kernels[ends[1] : ends[2]], 2))
        merged.append(found)
    return merged


def first_convolutions(features: Sequence[Tensor], kernels: Sequence[Kernels]) -> list[Tensor]:
    """Return what each branch's first convolution makes of four feature maps (B, C_i, H / 2^i, W / 2^i), finest first.

    The two coarsest maps are one for all finer branches, the coarsest doubled.
    """
    finest, finer, coarser, coarsest = features
    both = torch.cat([F.interpolate(coarsest, scale_factor=2.0, mode="nearest"), coarser], 1)
    return [
        _own(coarsest, *kernels[0]),
        _own(both, *kernels[1]),
        _own(finer, kernels[2][0]) + _enlarged(both, kernels[2][1], 2),
        _own(finest, kernels[3][0]) + _enlarged(both, kernels[3][1], 4) + _enlarged(finer, kernels[3][2], 2),
    ]


def _own(x: Tensor, kernel: Tensor) -> Tensor:
    # the laterals' biases are weights of a map of ones: unlike it, the padding around a map is 0
    return F.conv2d(torch.cat([x, torch.ones_like(x[:, :1])], 1), kernel, padding=1)


def _enlarged(x: Tensor, kernel: Tensor, factor: int) -> Tensor:
    return F.conv_transpose2d(x, kernel, stride=factor, padding=1)
