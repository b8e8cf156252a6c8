"""The segmentation network of PFedSIS and its baselines: a PVTv2-b0 encoder and two feature pyramid decoders.

Xu et al., "Personalizing federated instrument segmentation with visual trait priors in robotic surgery", IEEE TBME 2025
(arXiv 2408.03208), global-personalized disentanglement. The channels of every feature map are split into halves for a
global and a personal decoder; the prediction is the sum of both decoders' logits.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.networks.merged_fpn import Kernels, first_convolutions, merged_kernels
from shared_components.networks.pvt_v2 import CHANNELS, PvtV2B0

PYRAMID, SEGMENTATION = 256, 128  # channels of the pyramid and of the decoder's segmentation branches
GROUPS = 32
MERGED_FROM: Final = 3072
"""Minimum number of pixels in a batch's finest maps for which merged convolutions are faster (CPU, float32)."""


class FpnDecoder(nn.Module):
    """Merge four feature maps with `in_channels`, finest first, into 128 channels at the finest resolution.

    It is the semantic feature pyramid of Kirillov et al., "Panoptic feature pyramid networks", CVPR 2019 (Section 3.1),
    with the widths and the interpolation of segmentation_models_pytorch, as in PFedSIS.

    `lateral.0` to `lateral.3` and `segmentation.0` to `segmentation.3` go from the coarsest map, P5, to the finest, P2.
    1,690,368 parameters for 16, 32, 80 and 128 channels. `dropout` is the channel dropout of the merged map.
    """

    def __init__(self, in_channels: Sequence[int], *, dropout: float = 0.2) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(channels, PYRAMID, 1) for channels in reversed(in_channels))
        self.segmentation = nn.ModuleList(_branch(upsamplings) for upsamplings in (3, 2, 1, 0))
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Decode four maps (B, C_i, H / 2^i, W / 2^i), finest first, to (B, 128, H, W)."""
        if not torch.jit.is_scripting() and _is_worth_merging(features[0]):
            return self.dropout(self._decode_merged(features))
        p5 = self.lateral[0](features[3])  # all (B, 256, ., .)
        p4 = self.lateral[1](features[2]) + _double(p5)
        p3 = self.lateral[2](features[1]) + _double(p4)
        p2 = self.lateral[3](features[0]) + _double(p3)
        branches = self.segmentation
        return self.dropout(branches[0](p5) + branches[1](p4) + branches[2](p3) + branches[3](p2))

    @torch.jit.unused
    def _decode_merged(self, features: list[Tensor]) -> Tensor:
        """Return the same up to rounding, in 0.6 to 0.9 of a step's time; large batches gain most."""
        firsts = first_convolutions(features, self.kernels())
        return reduce(torch.add, (branch[1:](x) for branch, x in zip(self.branches(), firsts, strict=True)))

    @torch.jit.unused
    def kernels(self) -> list[Kernels]:
        """Return the branches' first kernels merged with the lateral convolutions, see `merged_fpn`."""
        firsts = [cast(nn.Conv2d, branch[0]) for branch in self.branches()]
        return merged_kernels(cast(list[nn.Conv2d], list(self.lateral)), firsts)

    @torch.jit.unused
    def branches(self) -> list[nn.Sequential]:
        """Return the branches, coarsest first."""
        return cast(list[nn.Sequential], list(self.segmentation))


class PvtFpn(nn.Module):
    """Two-path segmentation network; 6,791,270 parameters for three classes, 6,791,657 with the appearance head.

    Args:
        out_channels: Number of classes, including background.
        appearance_head: Add a head to the personal path that restores the image (PFedSIS, Eq. 5).
        drop_path: Stochastic depth of the last encoder block.
        dropout: Channel dropout of both decoders.
    """

    stride: Final = 32  # stride of the coarsest feature map in pixels
    training_only = ("head_appearance",)  # not used in prediction, so a checkpoint may lack it
    fusable: Final = (("decoder_global", "head_global"), ("decoder_personal", "head_personal"))  # see `fused_fpn.fuse`
    recordable: Final = True  # as a CUDA graph: operations depend only on the image's shape

    def __init__(
        self, *, out_channels: int = 4, appearance_head: bool = False, drop_path: float = 0.1, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.remade = partial(PvtFpn, appearance_head=appearance_head, drop_path=drop_path, dropout=dropout)
        halves = [channels // 2 for channels in CHANNELS]
        self.encoder = PvtV2B0(drop_path=drop_path)
        self.decoder_global = FpnDecoder(halves, dropout=dropout)
        self.head_global = nn.Conv2d(SEGMENTATION, out_channels, 1)
        self.decoder_personal = FpnDecoder(halves, dropout=dropout)
        self.head_personal = nn.Conv2d(SEGMENTATION, out_channels, 1)
        self.head_appearance = nn.Conv2d(SEGMENTATION, 3, 1) if appearance_head else None
        self.parts = {
            "encoder": ("encoder",),
            "decoder": ("decoder_global", "decoder_personal"),
            "decoder_global": ("decoder_global",),
            "decoder_personal": ("decoder_personal",),
            "head": ("head_global", "head_personal"),
            "top": ("decoder_personal", "head_personal", "head_global"),
        } | ({"head_appearance": ("head_appearance",)} if appearance_head else {})

    def with_classes(self, out_channels: int) -> "PvtFpn":
        """Return a newly initialised network with another number of classes."""
        return self.remade(out_channels=out_channels)

    def forward(self, image: Tensor) -> Tensor:
        """Predict logits: (B, 3, H, W) in [0, 1] -> (B, out_channels, H, W), "pred" of `forward_parts`."""
        shared, own = self.encode(image)
        pred_global = self.head_global(self.decoder_global(shared))
        return _enlarge(pred_global) + _enlarge(self.head_personal(self.decoder_personal(own)))

    def forward_parts(self, image: Tensor) -> dict[str, Tensor]:
        """Predict the inputs of PFedSIS's losses from (B, 3, H, W) in [0, 1]; ValueError unless 32 divides H and W.

        Returns "pred" (B, out_channels, H, W), the sum of both paths' logits; "global", the logits of the global path;
        and with an appearance head "restored" (B, 3, H, W), the restored image.
        """
        return self.decode(*self.encode(image))

    def decode(self, shared: list[Tensor], own: list[Tensor]) -> dict[str, Tensor]:
        """Predict as `forward_parts` from the two halves of the features, see `encode`."""
        pred_global = _enlarge(self.head_global(self.decoder_global(shared)))
        personal = self.decoder_personal(own)
        parts = {"pred": pred_global + _enlarge(self.head_personal(personal)), "global": pred_global}
        if self.head_appearance is not None:
            parts["restored"] = _enlarge(self.head_appearance(personal))
        return parts

    def forward_global(self, image: Tensor) -> Tensor:
        """Predict the logits of the global path, "global" of `forward_parts`, without the personal decoder."""
        shared, _ = self.encode(image)
        return _enlarge(self.head_global(self.decoder_global(shared)))

    def forward_features(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return "pred" of `forward_parts`, and the sum of both decoders' feature maps (B, 128, H/4, W/4)."""
        shared, own = self.encode(image)
        maps = self.decoder_global(shared), self.decoder_personal(own)
        return _enlarge(self.head_global(maps[0])) + _enlarge(self.head_personal(maps[1])), maps[0] + maps[1]

    def encode(self, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the four feature maps (B, C/2, H/s, W/s) of the global decoder and of the personal decoder."""
        _B, C, H, W = image.shape
        stride = self.stride
        if C != 3 or H % stride or W % stride or H * W == 0:
            rows, columns = max(1, round(H / stride)) * stride, max(1, round(W / stride)) * stride
            raise ValueError(
                f"PvtFpn takes images of 3 channels, height and width multiples of {stride}, "
                f"and got {C} channels of {H}x{W}; use {rows}x{columns}, for example"
            )
        features = self.encoder(image)  # channels are [shared, personal]
        return [x[:, : x.shape[1] // 2] for x in features], [x[:, x.shape[1] // 2 :] for x in features]


def _enlarge(logits: Tensor) -> Tensor:
    """(B, C, H/4, W/4) -> (B, C, H, W)."""
    return F.interpolate(logits, scale_factor=4.0, mode="bilinear", align_corners=False)


def _branch(upsamplings: int) -> nn.Sequential:
    """Repeat 3x3 convolution, group norm, ReLU and 2x upsampling up to the size of the finest map."""
    layers: list[nn.Module] = []
    for index in range(max(1, upsamplings)):
        convolution = nn.Conv2d(SEGMENTATION if index else PYRAMID, SEGMENTATION, 3, padding=1, bias=False)
        layers += [convolution, nn.GroupNorm(GROUPS, SEGMENTATION), nn.ReLU(inplace=True)]
        if upsamplings > 0:
            layers.append(nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True))
    return nn.Sequential(*layers)


@torch.jit.unused
def _is_worth_merging(finest: Tensor) -> bool:
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch.is_autocast_enabled(finest.device.type):  # slower without native bfloat16
        return False
    return finest.device.type == "cpu" and finest[:, 0].numel() >= MERGED_FROM


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
