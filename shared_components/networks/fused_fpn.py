"""The decoder of `pvt_fpn` for inference: the same logits but for rounding, by half of the multiplications.

Everything before the first normalisation of a decoder's branch is linear: lateral 1x1 convolutions, nearest doubling,
sums and a 3x3 convolution. So the 3x3 convolution of 256 channels is the sum of one convolution per feature map, of the
map's own channels at the map's own resolution. And a 1x1 convolution commutes with a bilinear resize, so that the
head's few channels are enlarged, not the decoder's 128.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.networks.pvt_fpn import FpnDecoder

LEVELS = 4


def upsampled_kernel(weight: Tensor, factor: int) -> Tensor:
    """Return the kernel of the transposed convolution, of stride `factor`, that equals enlarging and then convolving.

    A 3x3 convolution, (C_out, C_in, 3, 3), of a map that was enlarged by nearest neighbours gives most of its weights
    to copies of one pixel. Added beforehand they are (C_in, C_out, factor + 2, factor + 2); the padding is 1 in both.
    """
    copy = torch.arange(factor + 2)[:, None] + torch.arange(3) - 2  # of the pixel, under each row of the old kernel
    added = ((copy >= 0) & (copy < factor)).to(weight.dtype)  # (factor + 2, 3)
    return torch.einsum("mh,nw,oihw->iomn", added, added, weight).contiguous()


class FusedBranch(nn.Module):
    """One branch of a decoder, from all feature maps that reach it to the logits that it adds."""

    def __init__(self, decoder: FpnDecoder, level: int, head: nn.Conv2d) -> None:
        """Take a level from 0, the coarsest, to 3."""
        super().__init__()
        first, *rest = cast(nn.Sequential, decoder.segmentation[level])
        laterals = cast(list[nn.Conv2d], decoder.lateral[: level + 1])
        kernels = [torch.einsum("ochw,ci->oihw", first.weight, lateral.weight[:, :, 0, 0]) for lateral in laterals]
        bias = torch.stack([cast(Tensor, lateral.bias) for lateral in laterals]).sum(0)
        biases = torch.einsum("ochw,c->ohw", first.weight, bias)
        self.own = nn.Parameter(torch.cat([kernels.pop(), biases[:, None]], 1))  # the last channel is of ones
        self.factors = [2 ** (level - coarser) for coarser in range(level)]
        self.coarser = nn.ParameterList(map(upsampled_kernel, kernels, self.factors))
        self.enlarge = rest.pop() if isinstance(rest[-1], nn.Upsample) else nn.Identity()
        self.rest = nn.Sequential(*rest)
        self.head = nn.Parameter(head.weight)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Decode the maps that reach the branch, coarsest first, to (B, C, H, W) at the finest resolution."""
        own = maps[-1]
        # the laterals' biases are weights of a map of ones: unlike it, the padding around a map is 0
        x = F.conv2d(torch.cat([own, torch.ones_like(own[:, :1])], 1), self.own, padding=1)
        for coarser, kernel, factor in zip(maps[:-1], self.coarser, self.factors, strict=True):
            x = x + F.conv_transpose2d(coarser, kernel, stride=factor, padding=1)
        return self.enlarge(F.conv2d(self.rest(x), self.head))


class FusedFpn(nn.Module):
    """A decoder in evaluation together with its head."""

    def __init__(self, decoder: FpnDecoder, head: nn.Conv2d) -> None:
        super().__init__()
        assert head.bias is not None
        self.branches = nn.ModuleList(FusedBranch(decoder, level, head) for level in range(LEVELS))
        self.bias = nn.Parameter(head.bias[:, None, None])

    def forward(self, features: list[Tensor]) -> Tensor:
        """Decode four maps, finest first, to the head's logits (B, C, H, W) at the finest resolution."""
        maps = features[::-1]
        return sum((branch(maps[: level + 1]) for level, branch in enumerate(self.branches)), self.bias)


def fuse(network: nn.Module) -> nn.Module:
    """Fuse a network's decoders with their heads, in place, and return it; one without such decoders stays as it is.

    From then on it is for prediction alone: it has other weights, no gradients, and of `PvtFpn` no parts but "pred".
    """
    if pairs := getattr(network, "decoders", ()):
        network.eval().requires_grad_(False)
    for decoder, head in pairs:
        setattr(network, decoder, FusedFpn(getattr(network, decoder), getattr(network, head)).requires_grad_(False))
        setattr(network, head, nn.Identity())
    return network
