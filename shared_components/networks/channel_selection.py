"""Condition a feature map on a site's text: FedST's channel selection, and a prompt as its ablation.

Fang et al. (FedST), IEEE TMI 2026 (arXiv 2506.23759), Section 3.2.2. The text comes as an indicator, the vector that a
frozen text encoder computed from it.
"""

import torch
from torch import Tensor, nn


class ChannelSelection(nn.Module):
    """Amplify the channels that fit the site's text; 87,200 parameters for 160 channels and an indicator of 384."""

    def __init__(self, channels: int, indicator: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels + indicator, channels)  # columns are [map, indicator]
        nn.init.trunc_normal_(self.gate.weight, std=0.02)
        nn.init.zeros_(self.gate.bias)

    def forward(self, features: Tensor, indicator: Tensor) -> Tensor:
        """(B, C, H, W), (D,) -> (B, C, H, W), every channel times a factor of 1 to 2."""
        pooled = features.mean((2, 3))  # (B, C, H, W) -> (B, C)
        # Eq. (7): sigmoid(FC([GAP(F), indicator])), the composite indicator: (B, C + D) -> (B, C)
        composite = self.gate(torch.cat([pooled, indicator.expand(pooled.shape[0], -1)], 1)).sigmoid()
        return features + features * composite[:, :, None, None]  # Eq. (8)


class Prompt(nn.Module):
    """Add an embedding of the indicator to every pixel: the ablation without selection (Table 4, third row).

    The paper does not describe how the prompt is used; this is our choice. 61,440 parameters for 160 channels and an
    indicator of 384, initially 0; nothing is added for an indicator of zeros, which stands for no text.
    """

    def __init__(self, channels: int, indicator: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(indicator, channels, bias=False)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, features: Tensor, indicator: Tensor) -> Tensor:
        """(B, C, H, W), (D,) -> (B, C, H, W)."""
        return features + self.embedding(indicator)[:, None, None]  # (D,) -> (C, 1, 1)
