"""ResNet-50 on each frame and an LSTM: GynSurg's baseline, column RN50 of FL-EndoViT's Table 10.

Nasirihaghighi et al., GynSurg, 2025 (arXiv 2506.11356); Kirchner et al., MIDL 2026 (arXiv 2504.16612).

ResNet-50 has torchvision's tensor names: He et al., "Deep residual learning", CVPR 2016 (arXiv 1512.03385), with the
stride in the 3 x 3 convolution of a block ("v1.5"). In plain PyTorch, since the project does not depend on torchvision.
"""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.arguments import between
from shared_components.networks.sequences import FeatureLstm

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's colour statistics in 0..1
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Inner channels, number of blocks, and stride of each stage."""
EXPANSION = 4  # output channels of a block, as a multiple of its inner channels
FEATURES = STAGES[-1][0] * EXPANSION
CHUNK = 32  # frames per encoder call, except in training, where batch normalisation needs the whole batch


class ResNetClips(nn.Module):
    """Classify clips; 25,873,478 parameters for six classes."""

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
            raise ValueError(f"ResNetClips takes clips (B, T, 3, H, W) or images (B, 3, H, W), not {list(clip.shape)}")
        clip = clip if clip.dim() == 5 else clip[:, None]
        frames = clip.flatten(0, 1)  # (B, T, 3, H, W) -> (B*T, 3, H, W)
        chunks = frames.split(len(frames) if self.training else self.chunk)
        features = torch.cat([self.encoder(chunk) for chunk in chunks])
        return self.sequence(features.unflatten(0, clip.shape[:2]))  # (B*T, C) -> (B, T, C)


class ResNet50(nn.Module):
    """Classify images, or without ``classes`` compute 2,048 features; 25,557,032 parameters with 1,000 classes."""

    official = ("ResNet-50", "fc")  # see `checkpoints.load_encoder`
    mean: Tensor
    deviation: Tensor

    def __init__(self, *, classes: int = 0) -> None:
        super().__init__()
        between("ResNet50", "classes", classes, 0, whole=True)
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        in_channels = [64, *(channels * EXPANSION for channels, _, _ in STAGES)]
        stages = [_stage(width, *stage) for width, stage in zip(in_channels, STAGES, strict=False)]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(FEATURES, classes) if classes else nn.Identity()
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (B, classes), or features (B, 2048) without classes, of images (B, 3, H, W) in 0..1."""
        if image.dim() != 4 or image.shape[1] != 3:
            raise ValueError(f"ResNet50 takes images (B, 3, H, W), and got {list(image.shape)}")
        x = F.relu(self.bn1(self.conv1((image - self.mean) / self.deviation)))
        x = F.max_pool2d(x, 3, 2, padding=1)  # (B, 3, H, W) -> (B, 64, H/4, W/4)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))  # (B, 2048, H/32, W/32) -> (B, 2048)


def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    """Build a stage: (B, in_channels, H, W) -> (B, 4 * channels, H / stride, W / stride)."""
    later = [Bottleneck(EXPANSION * channels, channels, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(in_channels, channels, stride), *later)


class Bottleneck(nn.Module):
    """Bottleneck of 1x1, 3x3 and 1x1 convolutions with a residual connection, a convolution if shapes differ."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        width = EXPANSION * channels
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        around = nn.Sequential(nn.Conv2d(in_channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.downsample = around if in_channels != width or stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, 4 * channels, H / stride, W / stride)."""
        inner = F.relu(self.bn1(self.conv1(x)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        return F.relu(self.bn3(self.conv3(inner)) + self.downsample(x))
