"""The semantic feature pyramid decoder.

Kirillov et al., "Panoptic feature pyramid networks", CVPR 2019 (Section 3.1), with the widths and the
interpolation of the decoder in segmentation_models_pytorch, which PFedSIS uses: 256 channels in the pyramid,
128 in the segmentation branches.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

PYRAMID = 256
SEGMENTATION = 128
GROUPS = 32


class FpnDecoder(nn.Module):
    """Merge four feature maps of `in_channels`, finest first, into one of 128 channels at the finest resolution.

    `lateral.0` to `lateral.3` and `segmentation.0` to `segmentation.3` go from the coarsest map (P5) to the finest, P2.
    1,690,368 parameters for inputs of 16, 32, 80 and 128 channels. `dropout` zeroes channels of the merged map.
    """

    def __init__(self, in_channels: Sequence[int], *, dropout: float = 0.2) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(channels, PYRAMID, 1) for channels in reversed(in_channels))
        self.segmentation = nn.ModuleList(_branch(upsamplings) for upsamplings in (3, 2, 1, 0))
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Decode four maps (B, C_i, H / 2^i, W / 2^i), finest first, to (B, 128, H, W)."""
        p5 = self.lateral[0](features[3])  # all (B, 256, ., .)
        p4 = self.lateral[1](features[2]) + _double(p5)
        p3 = self.lateral[2](features[1]) + _double(p4)
        p2 = self.lateral[3](features[0]) + _double(p3)
        branches = self.segmentation
        return self.dropout(branches[0](p5) + branches[1](p4) + branches[2](p3) + branches[3](p2))


def _branch(upsamplings: int) -> nn.Sequential:
    """3x3 convolution, group norm, ReLU and doubling, repeated up to the size of the finest map."""
    layers: list[nn.Module] = []
    for index in range(max(1, upsamplings)):
        convolution = nn.Conv2d(SEGMENTATION if index else PYRAMID, SEGMENTATION, 3, padding=1, bias=False)
        layers += [convolution, nn.GroupNorm(GROUPS, SEGMENTATION), nn.ReLU(inplace=True)]
        if upsamplings > 0:
            layers.append(nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True))
    return nn.Sequential(*layers)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
