"""Merge the first convolutions of an FPN decoder's branches with its lateral convolutions, to save multiplications.

Everything before a branch's first normalisation is linear: lateral 1x1 convolutions, nearest-neighbour upsampling, sums
and a 3x3 convolution. So the 3x3 convolution of 256 channels equals a sum of one convolution per feature map, at that
map's channels and resolution, whose kernels are products of both convolutions' weights.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Kernels = list[Tensor]
"""Kernels of one branch: a 3x3 convolution of its own map, then transposed convolutions of coarser maps."""


def upsampled_kernel(kernel: Tensor, factor: int) -> Tensor:
    """Return the kernel of a transposed convolution with stride `factor` that equals upsampling and then convolving.

    After nearest-neighbour upsampling most weights of a 3x3 kernel meet copies of one pixel, so they are summed:
    (C_in, C_out, 3, 3) -> (C_in, C_out, factor + 2, factor + 2). The padding is 1 in both convolutions.
    """
    copy = torch.arange(factor + 2)[:, None] + torch.arange(3) - 2  # index of the pixel copy under each kernel row
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
        begin = 0 if level < 2 else ends[level - 1]  # first channel of the own map; level 1 includes the coarsest map
        branch = [kernels[begin:].transpose(0, 1)]
        if level >= 2:
            branch.append(upsampled_kernel(kernels[: ends[1]], 2 ** (level - 1)))
        if level == 3:
            branch.append(upsampled_kernel(kernels[ends[1] : ends[2]], 2))
        merged.append(branch)
    return merged


def first_convolutions(features: Sequence[Tensor], kernels: Sequence[Kernels]) -> list[Tensor]:
    """Return the first convolution of each branch for four feature maps (B, C_i, H / 2^i, W / 2^i), finest first.

    The coarsest map is upsampled and concatenated with the second coarsest map.
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
    # a channel of ones carries the laterals' biases, since the padding must stay 0
    return F.conv2d(torch.cat([x, torch.ones_like(x[:, :1])], 1), kernel, padding=1)


def _enlarged(x: Tensor, kernel: Tensor, factor: int) -> Tensor:
    return F.conv_transpose2d(x, kernel, stride=factor, padding=1)
