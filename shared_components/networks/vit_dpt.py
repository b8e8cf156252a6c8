"""A segmentation ViT: FL-EndoViT's encoder and the DPT decoder.

Ranftl et al., "Vision transformers for dense prediction", ICCV 2021, with readout by projection and batch normalisation
as in EndoViT. The encoder's tensors have the same names as in `mae_vit`, without the last normalisation, since the
decoder reads the blocks.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.arguments import between
from shared_components.networks.vit import Vit

LEVELS = 4
WIDTH = {"base": 256}  # channels of the decoder; other architectures use a third of the encoder's width
ENCODER = ("cls_token", "patch_embed", "blocks")


class VitDpt(Vit):
    """Segment frames whose sides are multiples of the patch size.

    Args:
        out_channels: Number of classes, including background.
        features: Channels of the decoder; None: 256 for ``base``, else a third of the encoder's width.
        dropout: Dropout probability before the classifier.
        architecture, size, drop_path, trained_encoders: See `vit.Vit`.
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
        self.hooks = hooks(self.sizes.blocks)
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
        self.parts = {"encoder": ENCODER, "decoder": decoder, "head": ("head",), "top": (*decoder, "head")}
        self.parts["positions"] = ("pos_embed",)
        self._start()

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (B, out_channels, H, W) of images (B, 3, H, W) in 0..1; ValueError as `vit.Vit.embed`."""
        maps = self._maps(image)
        fused = self.fusion[3](maps[3], None)  # unrolled: TorchScript cannot iterate modules in reverse
        fused = self.fusion[2](maps[2], fused)
        fused = self.fusion[1](maps[1], fused)
        fused = self.fusion[0](maps[0], fused)
        return F.interpolate(self.head(self.neck(fused)), size=image.shape[-2:], mode="bilinear", align_corners=False)

    def _maps(self, image: Tensor) -> list[Tensor]:
        """Return the feature maps of four blocks at strides p/4, p/2, p and 2p, finest first."""
        rows, columns = self.grid(image)
        hooked = []  # tokens (B, 1 + L, C)
        tokens = self.with_class_token(self.embed(image))
        for number, block in enumerate(self.blocks):
            tokens = block(tokens)
            if number in self.hooks:
                hooked.append(self.learnt(tokens))
        maps: list[Tensor] = []
        for readout, layers in zip(self.readout, self.reassemble):  # noqa: B905 # TorchScript does not know strict
            patches = readout(hooked[len(maps)])
            grid = patches.transpose(1, 2).unflatten(2, (rows, columns))  # (B, L, C) -> (B, C, rows, columns)
            maps.append(layers(grid))
        return maps


def hooks(blocks: int) -> list[int]:
    """Return the indices of the decoder's four blocks: 2, 5, 8 and 11 of 12, or the same relative depths."""
    return [-(-blocks * part // LEVELS) - 1 for part in range(1, LEVELS + 1)]


class Readout(nn.Module):
    """Concatenate the class token to every patch and project them (Eq. (6), Read_proj)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(2 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, 1 + L, C) -> (B, L, C)."""
        patches = tokens[:, 1:]
        return F.gelu(self.project(torch.cat([patches, tokens[:, :1].expand_as(patches)], 2)))


def reassemble(width: int, level: int) -> nn.Sequential:
    """Return the layers that resample a map of stride p to the level's resolution and channels.

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
    """Add a level's map to the fused coarser map, and refine the sum (RefineNet, Lin et al., CVPR 2017)."""

    def __init__(self, in_channels: int, channels: int, *, coarsest: bool) -> None:
        super().__init__()
        self.enter = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.beside = None if coarsest else Residual(channels)
        self.refine = Residual(channels)
        self.leave = nn.Conv2d(channels, channels, 1)

    def forward(self, level: Tensor, coarser: Tensor | None) -> Tensor:
        """(B, c, h, w) and (B, C, about h, about w) or None -> (B, C, 2h, 2w)."""
        fused = self.enter(level)
        if self.beside is not None and coarser is not None:
            resized = F.interpolate(coarser, size=fused.shape[-2:], mode="bilinear", align_corners=True)
            fused = resized + self.beside(fused)
        fused = F.interpolate(self.refine(fused), scale_factor=2.0, mode="bilinear", align_corners=True)
        return self.leave(fused)


class Residual(nn.Module):
    """Residual block of two convolutions with batch normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            layers += [nn.ReLU(), convolution, nn.BatchNorm2d(channels)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)
