"""ResNet-50 on each frame and an LSTM: GynSurg's baseline, column RN50 of FL-EndoViT's Table 10.

Nasirihaghighi et al., GynSurg, 2025 (arXiv 2506.11356); Kirchner et al., MIDL 2026 (arXiv 2504.16612).
"""

from typing import Final

import torch
from torch import Tensor, nn

from shared_components.common.arguments import between
from shared_components.networks.resnet import FEATURES, ResNet50
from shared_components.networks.sequences import FeatureLstm

CHUNK = 32  # frames per encoder call, except in training, where batch normalisation needs the whole batch


class ResNetClips(nn.Module):
    """Classify clips; 25,873,478 parameters for six classes.

    Args:
        out_channels: Number of classes.
    """

    takes_clips: Final = True
    chunk: Final = CHUNK

    def __init__(self, *, out_channels: int = 4) -> None:
        super().__init__()
        between("ResNetClips", "out_channels", out_channels, 1, whole=True)
        self.encoder = ResNet50()
        self.sequence = FeatureLstm(features=FEATURES, out_channels=out_channels)
        self.parts = {
            "encoder": ("encoder",), "decoder": ("sequence",), "head": ("sequence.head",), "top": ("sequence",),
        }  # fmt: skip

    def with_classes(self, out_channels: int) -> "ResNetClips":
        """Return a newly initialised network with another number of classes."""
        return ResNetClips(out_channels=out_channels)

    def forward(self, clip: Tensor) -> Tensor:
        """Return logits (B, out_channels) of clips (B, T, 3, H, W) in 0..1, or of images (B, 3, H, W)."""
        if clip.dim() not in (4, 5):
            raise ValueError(
                f"ResNetClips takes clips (B, T, 3, H, W) or pictures (B, 3, H, W), and got {list(clip.shape)}"
            )
        clip = clip if clip.dim() == 5 else clip[:, None]
        B, T = clip.shape[:2]
        frames = clip.flatten(0, 1)  # (B, T, 3, H, W) -> (B*T, 3, H, W)
        few = frames.split(len(frames) if self.training else self.chunk)
        features = torch.cat([self.encoder(some) for some in few])
        return self.sequence(features.unflatten(0, (B, T)))  # (B*T, C) -> (B, T, C)
