"""FL-EndoViT's vision transformer encoder, with the tensor names of timm, MAE and EndoViT at the network's top level.

Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021; initialisation and constant position embeddings as in
He et al., "Masked autoencoders are scalable vision learners", CVPR 2022. The network normalises images with EndoViT's
mean and deviation (Batic et al., IJCARS 2024).
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.arguments import between, one_of, true_or_false
from shared_components.networks.bundle_config import check_side

MEAN, DEVIATION = (0.3464, 0.2280, 0.2228), (0.2520, 0.2128, 0.2093)  # colour statistics of Endo700k in 0..1
EPSILON = 1e-6  # epsilon of layer normalisation
TOKEN = 0.02  # standard deviation of initial tokens
ENCODER = ("cls_token", "patch_embed", "blocks", "norm")


@dataclass(frozen=True)
class Architecture:
    """Sizes of an encoder and of MAE's decoder; sides are in pixels."""

    side: int
    patch: int
    width: int
    blocks: int
    heads: int
    decoder_width: int
    decoder_blocks: int
    decoder_heads: int


ARCHITECTURES = {
    "tiny": Architecture(64, 8, 192, 6, 3, 96, 2, 3),
    "base": Architecture(224, 16, 768, 12, 12, 512, 8, 16),
}


class Vit(nn.Module):
    """ViT encoder, the base class of `mae_vit` and the ``vit_*`` networks.

    Args:
        architecture: One of `ARCHITECTURES`.
        size: Side in pixels of the square image of the position embeddings, a multiple of the patch size; 0: the
            architecture's side. For other sizes position embeddings are interpolated.
        drop_path: Stochastic depth of the last block, growing linearly from 0 at the first block.
        trained_encoders: Train the encoder; otherwise it is frozen.

    Raises ValueError: an argument is unknown or out of its range.
    """

    if TYPE_CHECKING:  # TorchScript cannot read string annotations
        mean: Tensor
        deviation: Tensor
        remade: partial[Any]

    def __init__(self, *, architecture: str, size: int, drop_path: float, trained_encoders: bool) -> None:
        super().__init__()
        self.kind, self.architecture = type(self).__name__, architecture
        one_of(self.kind, "architecture", architecture, ARCHITECTURES)
        between(self.kind, "drop_path", drop_path, 0, 1, ends="[)")
        true_or_false(self.kind, "trained_encoders", trained_encoders)
        self.sizes = ARCHITECTURES[architecture]
        check_side(self.kind, size, self.sizes.patch)
        self.patch = self.stride = self.sizes.patch  # an image's sides are multiples of it
        self.side = (size or self.sizes.side) // self.patch  # in patches
        self.trained_encoders = trained_encoders
        width, depth = self.sizes.width, self.sizes.blocks
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(sine_positions(width, self.side, self.side), requires_grad=False)
        self.patch_embed = PatchEmbed(self.patch, width)
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.ModuleList(Block(width, self.sizes.heads, rate) for rate in rates)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)

    def _start(self) -> None:
        """Initialise all modules, and freeze the encoder unless it is trained."""
        initialise(self)
        for name, parameter in self.named_parameters():
            if not self.trained_encoders and name.partition(".")[0] in ENCODER:
                parameter.requires_grad_(False)

    def with_classes(self, out_channels: int) -> Any:
        """Return a newly initialised network with another number of outputs."""
        return self.remade(out_channels=out_channels)

    def layers(self) -> list[tuple[str, ...]]:
        """Return the layers by depth for layer-wise learning-rate decay, see `parameter_groups`."""
        return vit_layers(len(self.blocks))

    def learnt(self, tokens: Tensor) -> Tensor:
        """Stop the gradient at the encoder's output if the encoder is frozen."""
        return tokens if self.trained_encoders else tokens.detach()

    def embed(self, image: Tensor) -> Tensor:
        """Return the patch embeddings (B, L, C) with positions, row by row, of images (B, 3, H, W) in 0..1.

        Raises ValueError for another shape, or sides that are not multiples of the patch size.
        """
        rows, columns = self.grid(image)
        normalised = (image - self.mean) / self.deviation
        return self.patch_embed(normalised) + positions_at(self.pos_embed, self.side, rows, columns)[:, 1:]

    def with_class_token(self, patches: Tensor) -> Tensor:
        """Prepend the class token: (B, L, C) -> (B, 1 + L, C)."""
        token = self.cls_token + self.pos_embed[:, :1]
        return torch.cat([token.expand(len(patches), -1, -1), patches], 1)

    def grid(self, image: Tensor) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches; ValueError as `embed`."""
        p = self.patch
        if image.dim() != 4 or image.shape[1] != 3 or image.shape[2] % p != 0 or image.shape[3] % p != 0:
            raise ValueError(
                f"{self.kind} takes images (B, 3, H, W), height and width multiples of {p}, and got {list(image.shape)}"
            )
        return image.shape[2] // p, image.shape[3] // p

    def pooled(self, image: Tensor, pool: str) -> Tensor:
        """Return the normalised class ``token``, or the normalised ``mean`` of the patches: (B, 3, H, W) -> (B, C)."""
        tokens = self.with_class_token(self.embed(image))
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.learnt(tokens)  # (B, 1 + L, C), class token first
        return self.learnt(self.norm(tokens[:, 0] if pool == "token" else tokens[:, 1:].mean(1)))


class PatchEmbed(nn.Module):
    """Linear embedding of each patch, as a convolution without overlap."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, H/p * W/p, C)."""
        return self.proj(image).flatten(2).transpose(1, 2)  # (B, C, h, w) -> (B, h*w, C)


class Block(nn.Module):
    """Pre-norm attention and MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = Mlp(width, 4 * width)
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._dropped(self.attn(self.norm1(x)))
        return x + self._dropped(self.mlp(self.norm2(x)))

    def _dropped(self, branch: Tensor) -> Tensor:
        """Drop the branch (B, N, C) of random samples, and scale the others (Huang et al., ECCV 2016)."""
        if not self.training or not self.drop_path:
            return branch
        mask = torch.empty(len(branch), 1, 1, dtype=branch.dtype, device=branch.device)
        return branch * mask.bernoulli_(1 - self.drop_path).div_(1 - self.drop_path)


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        parts = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (B, N, 3, heads, c) -> (3, B, heads, N, c)
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.proj(attended.transpose(1, 2).reshape(B, N, C))  # (B, heads, N, c) -> (B, N, heads * c)


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def initialise(network: nn.Module) -> None:
    """Initialise as MAE: Xavier for linear layers and the patch embedding, normal tokens, zero biases."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, PatchEmbed):
            nn.init.xavier_uniform_(module.proj.weight.flatten(1))  # (C, 3, p, p) -> (C, 3*p*p), the same memory
    for name, token in network.named_parameters():
        if name in ("cls_token", "mask_token"):
            nn.init.normal_(token, std=TOKEN)


def sine_positions(width: int, rows: int, columns: int) -> Tensor:
    """Return constant position embeddings (1, 1 + rows * columns, width), first 0 for the class token.

    The first half of the channels encodes the column and the second half the row, as sines and cosines with frequencies
    10000^(-4 i / width), as in MAE; ``width`` is a multiple of 4.
    """
    if torch.empty(0).is_meta:  # on the meta device torch would import its compiler
        return torch.empty(1, 1 + rows * columns, width)
    rates = 10_000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))

    def encoded(places: int) -> Tensor:  # (places, width / 2)
        angles = torch.arange(places, dtype=torch.float64)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)

    across = encoded(columns)[None].expand(rows, -1, -1)
    down = encoded(rows)[:, None].expand(-1, columns, -1)
    grid = torch.cat([across, down], 2).reshape(1, rows * columns, width)  # (rows, columns, C) -> (1, rows*columns, C)
    return torch.cat([torch.zeros(1, 1, width, dtype=grid.dtype), grid], 1).float()


def positions_at(positions: Tensor, side: int, rows: int, columns: int) -> Tensor:
    """Interpolate position embeddings (1, 1 + side^2, C) bilinearly for another grid: (1, 1 + rows * columns, C)."""
    if rows == side and columns == side:
        return positions
    C = positions.shape[2]
    grid = positions[:, 1:].reshape(1, side, side, C).permute(0, 3, 1, 2)  # (1, side^2, C) -> (1, C, side, side)
    resized = F.interpolate(grid, size=(rows, columns), mode="bilinear", align_corners=False)
    return torch.cat([positions[:, :1], resized.flatten(2).transpose(1, 2)], 1)  # (1, C, h, w) -> (1, h*w, C)


def vit_layers(blocks: int, decoder_blocks: int = 0) -> list[tuple[str, ...]]:
    """Return the `layers` of a ViT with timm's names, or of a masked autoencoder with MAE's names.

    The last encoder block and the first decoder block have depth 1, and so on; depth d gets the rate x decay^d.
    `norm`, `decoder_embed`, `mask_token` and parameters without a layer, such as a head, get the full rate.
    """
    depths: list[tuple[str, ...]] = [("norm", "decoder_embed", "mask_token")]
    depths += [(f"blocks.{blocks - depth}",) for depth in range(1, blocks + 1)]
    depths.append(("patch_embed", "cls_token", "pos_embed"))
    depths += [()] * (decoder_blocks + 2 - len(depths))
    mirrored = [(f"decoder_blocks.{number}",) for number in range(decoder_blocks)]
    last = [("decoder_norm", "decoder_pred")] if decoder_blocks else []
    for depth, names in enumerate([*mirrored, *last], start=1):
        depths[depth] += names
    return depths
