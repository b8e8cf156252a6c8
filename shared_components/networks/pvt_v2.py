"""Pyramid Vision Transformer v2, size b0, with the official tensor names.

Wang et al., "PVT v2: Improved baselines with Pyramid Vision Transformer", Computational Visual Media 2022
(arXiv 2106.13797). In plain PyTorch, since a model library takes seconds to import in each process of a simulation.

Inside the encoder a feature map is (B, H, W, C), so that linear layers and norms need no transpose. As (B, C, H, W) it
has the channels-last format, which is fastest for convolutions on a CPU.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = (32, 64, 160, 256)  # channels of the feature maps at 1/4, 1/8, 1/16 and 1/32 of the image size
HEADS = (1, 2, 5, 8)
REDUCTIONS = (8, 4, 2, 1)
EXPANSIONS = (8, 8, 4, 4)
DEPTH = 2


class DropPath(nn.Module):
    """Drop the residual branch of random samples (Huang et al., "Deep networks with stochastic depth", 2016).

    The other samples are divided by 1 - probability, to keep the expectation.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.keep = 1.0 - probability

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.keep == 1.0:
            return branch
        mask = torch.empty((branch.shape[0], 1, 1, 1), dtype=branch.dtype, device=branch.device)
        return branch * mask.bernoulli_(self.keep).div_(self.keep)


class PatchEmbed(nn.Module):
    """Embed overlapping patches by a strided convolution (Section 3.2)."""

    def __init__(self, in_channels: int, out_channels: int, *, kernel: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2)
        self.norm = nn.LayerNorm(out_channels)

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H/stride, W/stride, out_channels)."""
        return self.norm(self.proj(image).permute(0, 2, 3, 1))  # (B, C, H, W) -> (B, H, W, C)


class Attention(nn.Module):
    """Multi-head attention with keys and values from a map reduced by a strided convolution."""

    def __init__(self, channels: int, *, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(channels, channels)
        self.kv = nn.Linear(channels, 2 * channels)  # rows are [K; V]
        self.proj = nn.Linear(channels, channels)
        self.sr = nn.Conv2d(channels, channels, reduction, reduction) if reduction > 1 else nn.Identity()
        self.norm = nn.LayerNorm(channels) if reduction > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        reduced = self.norm(self.sr(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))  # (B, H/r, W/r, C)
        # (B, H, W, C) -> (B, heads, H*W, C/heads)
        query = self.q(x).reshape(B, H * W, self.heads, C // self.heads).transpose(1, 2)
        # (B, H/r, W/r, 2C) -> (2, B, heads, H*W/r^2, C/heads)
        keys_values = self.kv(reduced).reshape(B, -1, 2, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, keys_values[0], keys_values[1])
        return self.proj(attended.transpose(1, 2).reshape(B, H, W, C))  # from (B, heads, H*W, C/heads)


class DepthwiseConv(nn.Module):
    """3x3 depth-wise convolution, whose zero padding encodes the position (Section 3.3)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.dwconv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # channels first inside


class FeedForward(nn.Module):
    """Convolutional feed-forward layer (Section 3.3)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, hidden)
        self.dwconv = DepthwiseConv(hidden)
        self.fc2 = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.dwconv(self.fc1(x))))


class Block(nn.Module):
    """Pre-norm attention and feed-forward layer, each with a residual connection."""

    def __init__(self, channels: int, *, heads: int, reduction: int, expansion: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attn = Attention(channels, heads=heads, reduction=reduction)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = FeedForward(channels, channels * expansion)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PvtV2B0(nn.Module):
    """Encoder with 3,409,760 parameters; names and epsilons match the official `pvt_v2_b0.pth`.

    `drop_path`, in [0, 1), is the stochastic depth of the last block, growing linearly from 0.
    """

    official = ("PVTv2-b0", "head")  # see `checkpoints.load_encoder`

    def __init__(self, *, drop_path: float = 0.1) -> None:
        super().__init__()
        if not 0 <= drop_path < 1:
            raise ValueError(f"drop_path is {drop_path}; give a probability of at least 0 and below 1")
        self.patch_embed1 = PatchEmbed(3, CHANNELS[0], kernel=7, stride=4)
        self.block1 = _blocks(0, drop_path)
        self.norm1 = nn.LayerNorm(CHANNELS[0], eps=1e-6)
        self.patch_embed2 = PatchEmbed(CHANNELS[0], CHANNELS[1], kernel=3, stride=2)
        self.block2 = _blocks(1, drop_path)
        self.norm2 = nn.LayerNorm(CHANNELS[1], eps=1e-6)
        self.patch_embed3 = PatchEmbed(CHANNELS[1], CHANNELS[2], kernel=3, stride=2)
        self.block3 = _blocks(2, drop_path)
        self.norm3 = nn.LayerNorm(CHANNELS[2], eps=1e-6)
        self.patch_embed4 = PatchEmbed(CHANNELS[2], CHANNELS[3], kernel=3, stride=2)
        self.block4 = _blocks(3, drop_path)
        self.norm4 = nn.LayerNorm(CHANNELS[3], eps=1e-6)
        self.apply(_initialise)

    def forward(self, image: Tensor) -> list[Tensor]:
        """Compute four feature maps (B, C, H/s, W/s) for s = 4, 8, 16, 32, in channels-last format, from (B, 3, H, W).

        H and W are multiples of 32.
        """
        # (B, H/s, W/s, C) inside a stage
        first = self.norm1(self.block1(self.patch_embed1(image))).permute(0, 3, 1, 2)
        second = self.norm2(self.block2(self.patch_embed2(first))).permute(0, 3, 1, 2)
        third = self.norm3(self.block3(self.patch_embed3(second))).permute(0, 3, 1, 2)
        return [first, second, third, self.norm4(self.block4(self.patch_embed4(third))).permute(0, 3, 1, 2)]


def _blocks(stage: int, drop_path: float) -> nn.Sequential:
    """Return the transformer blocks of a stage; stochastic depth grows linearly over the encoder's blocks."""
    last = len(CHANNELS) * DEPTH - 1
    sizes = {"heads": HEADS[stage], "reduction": REDUCTIONS[stage], "expansion": EXPANSIONS[stage]}
    depths = [drop_path * (stage * DEPTH + index) / last for index in range(DEPTH)]
    return nn.Sequential(*(Block(CHANNELS[stage], **sizes, drop_path=depth) for depth in depths))


def _initialise(module: nn.Module) -> None:
    """Initialise as the official code: truncated normal 0.02, fan-out normal, norms 1 and 0."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
