"""The decoder of `pvt_fpn` for inference: the same logits up to rounding, with 0.56 of the multiplications.

The first convolutions are merged once with all earlier layers, see `merged_fpn`. A 1x1 convolution commutes with
bilinear resizing, so the head's few channels are resized instead of the decoder's 128.
"""

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.networks.merged_fpn import first_convolutions
from shared_components.networks.pvt_fpn import FpnDecoder


class FusedBranch(nn.Module):
    """One branch of a decoder after its first convolution, with its share of the head."""

    def __init__(self, layers: list[nn.Module], head: nn.Conv2d) -> None:
        super().__init__()
        self.enlarge = layers.pop() if isinstance(layers[-1], nn.Upsample) else nn.Identity()
        self.rest = nn.Sequential(*layers)
        self.head = nn.Parameter(head.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Decode the first convolution's output to logits (B, C, H, W) at the finest resolution."""
        return self.enlarge(F.conv2d(self.rest(x), self.head))


class FusedFpn(nn.Module):
    """A decoder fused with its head, for evaluation."""

    def __init__(self, decoder: FpnDecoder, head: nn.Conv2d) -> None:
        super().__init__()
        assert head.bias is not None
        self.kernels = nn.ModuleList(nn.ParameterList(k.contiguous() for k in branch) for branch in decoder.kernels())
        self.branches = nn.ModuleList(FusedBranch([*branch][1:], head) for branch in decoder.branches())
        self.bias = nn.Parameter(head.bias[:, None, None])

    def forward(self, features: list[Tensor]) -> Tensor:
        """Decode four maps, finest first, to the head's logits (B, C, H, W) at the finest resolution."""
        firsts = first_convolutions(features, [[*kernels] for kernels in cast(list[nn.ParameterList], self.kernels)])
        return sum((branch(x) for branch, x in zip(self.branches, firsts, strict=True)), self.bias)


def fuse(network: nn.Module) -> nn.Module:
    """Fuse a network's `fusable` decoders with their heads in place, and return the network.

    The fused network is only for prediction: it has other weights and no gradients, and `PvtFpn` returns only "pred".
    """
    if pairs := getattr(network, "fusable", ()):
        network.eval().requires_grad_(False)
    for decoder, head in pairs:
        setattr(network, decoder, FusedFpn(getattr(network, decoder), getattr(network, head)).requires_grad_(False))
        setattr(network, head, nn.Identity())
    return network
