"""A ViT that segments: FL-EndoViT's encoder and the decoder of DPT.

Ranftl et al., "Vision transformers for dense prediction", ICCV 2021, with readout by projection and batch
normalisation, as EndoViT has it. The encoder's tensors have the names that they have in `mae_vit`; its last
normalisation is not there, since the decoder reads the blocks.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.arguments import between
from shared_components.networks.vit import Vit

LEVELS = 4
WIDTH = {"base": 256}  # channels of the decoder; of other architectures a third of the encoder's
ENCODER = ("cls_token", "patch_embed", "blocks")


class VitDpt(Vit):
    """Segment frames of any size whose sides are multiples of the patch.

    Args:
        out_channels: Classes, background included.
        features: Channels of the decoder's maps; None: 256 at ``base``, a third of the encoder's width elsewhere.
        dropout: Before the classifier.
        architecture, size, drop_path, trained_encoders: See `vit.Vit`.

    Raises:
        ValueError: An argument is unknown or out of its range; one sentence.
    """

    def __init__(
        self,
        *,
        out_channels: int = 4,
        architecture: str = "tiny",
        size: int = 0,
        features: int | None = None,
        dropout: float = 0.1,
        drop_path: float = 0.1,
        trained_encoders: bool = True,
    ) -> None:
        between("VitDpt", "out_channels", out_channels, 1, whole=True)
        between("VitDpt", "features", features, 1, whole=True, null="the architecture's")
        between("VitDpt", "dropout", dropout, 0, 1, ends="[)")
        super().__init__(architecture=architecture, size=size, drop_path=drop_path, trained_encoders=trained_encoders)
        self.remade = partial(
            VitDpt, architecture=architecture, size=size, features=features, dropout=dropout, drop_path=drop_path,
            trained_encoders=trained_encoders,
        )  # fmt: skip
        del self.norm
        width = self.sizes.width
        channels = features or WIDTH.get(architecture, width // 3)
        self.hooks = list(hooks(self.sizes.blocks))
        self.readout = nn.ModuleList(Readout(width) for _ in range(LEVELS))
        self.reassemble = nn.ModuleList(reassemble(width, level) for level in range(LEVELS))
        self.fusion = nn.ModuleList(
            Fusion(width * 2**level // 8, channels, coarsest=level == LEVELS - 1) for level in range(LEVELS)
        )
        self.neck = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Dropout(dropout),
        )  # fmt: skip
        self.head = nn.Conv2d(channels, out_channels, 1)
        decoder = ("readout", "reassemble", "fusion", "neck")
        self.parts = {
            "encoder": ENCODER,
            "decoder": decoder,
            "head": ("head",),
            "top": (*decoder, "head"),
            "positions": ("pos_embed",),
        }
        self._start()

    def with_classes(self, out_channels: int) -> VitDpt:
        """Return a fresh, newly initialised network that differs in the number of classes alone."""
        return self.remade(out_channels=out_channels)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (B, out_channels, H, W) of pictures (B, 3, H, W) in 0..1; ValueError as `vit.Vit.embed`."""
        maps = self._maps(image)
        found = self.fusion[3](maps[3], None)  # one by one: TorchScript takes no modules in reverse
        found = self.fusion[2](maps[2], found)
        found = self.fusion[1](maps[1], found)
        found = self.fusion[0](maps[0], found)
        return F.interpolate(self.head(self.neck(found)), size=image.shape[-2:], mode="bilinear", align_corners=False)

    def _maps(self, image: Tensor) -> list[Tensor]:
        """Return the maps of four blocks, of strides p/4, p/2, p and 2p, the finest first."""
        rows, columns = self.grid(image)
        maps: list[Tensor] = []
        taken = self._taken(image)
        for readout, layers in zip(self.readout, self.reassemble):  # noqa: B905 # TorchScript does not know strict
            patches = readout(taken[len(maps)])
            grid = patches.transpose(1, 2).unflatten(2, (rows, columns))  # (B, L, C) -> (B, C, rows, columns)
            maps.append(layers(grid))
        return maps

    def _taken(self, image: Tensor) -> list[Tensor]:
        """Return the tokens (B, 1 + L, C) after each of the hooked blocks."""
        taken = []
        tokens = self.with_class_token(self.embed(image))
        for number, block in enumerate(self.blocks):
            tokens = block(tokens)
            if number in self.hooks:
                taken.append(self.learnt(tokens))
        return taken


def hooks(blocks: int) -> tuple[int, ...]:
    """Return which four blocks the decoder reads: 2, 5, 8 and 11 of 12, and of fewer those at the same depths."""
    return tuple(-(-blocks * part // LEVELS) - 1 for part in range(1, LEVELS + 1))


class Readout(nn.Module):
    """Join the class token to every patch and project them (Eq. (6), Read_proj)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(2 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, 1 + L, C) -> (B, L, C)."""
        patches = tokens[:, 1:]
        return F.gelu(self.project(torch.cat([patches, tokens[:, :1].expand_as(patches)], 2)))


def reassemble(width: int, level: int) -> nn.Sequential:
    """Return the layers from a map of stride p to the level's stride and channels: 4 and 2 times finer, same, coarser.

    (B, C, h, w) -> (B, C/8, 4h, 4w), (B, C/4, 2h, 2w), (B, C/2, h, w) or (B, C, h/2, w/2).
    """
    channels = width * 2**level // 8
    resized: list[nn.Module] = [
        nn.ConvTranspose2d(channels, channels, 4, stride=4),
        nn.ConvTranspose2d(channels, channels, 2, stride=2),
        nn.Identity(),
        nn.Conv2d(channels, channels, 3, stride=2, padding=1),
    ]
    return nn.Sequential(nn.Conv2d(width, channels, 1), resized[level])


class Fusion(nn.Module):
    """Add a level's map to what the coarser ones gave, and refine both (RefineNet, Lin et al., CVPR 2017)."""

    def __init__(self, given: int, channels: int, *, coarsest: bool) -> None:
        super().__init__()
        self.enter = nn.Conv2d(given, channels, 3, padding=1, bias=False)
        self.beside = None if coarsest else Residual(channels)
        self.refine = Residual(channels)
        self.leave = nn.Conv2d(channels, channels, 1)

    def forward(self, level: Tensor, coarser: Tensor | None) -> Tensor:
        """(B, c, h, w) and (B, C, about h, about w) or None -> (B, C, 2h, 2w)."""
        found = self.enter(level)
        if self.beside is not None and coarser is not None:
            resized = F.interpolate(coarser, size=found.shape[-2:], mode="bilinear", align_corners=True)
            found = resized + self.beside(found)
        found = F.interpolate(self.refine(found), scale_factor=2.0, mode="bilinear", align_corners=True)
        return self.leave(found)


class Residual(nn.Module):
    """Two convolutions with batch normalisation, beside a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            layers += [nn.ReLU(), convolution, nn.BatchNorm2d(channels)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h, w)."""
        return x + self.layers(x)
