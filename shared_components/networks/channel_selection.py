"""What a site's text does to a map: FedST's channel selection, and a prompt without it.

Fang et al. (FedST), IEEE TMI 2026 (arXiv 2506.23759), Section 3.2.2. The text itself is never seen here: it is an
indicator, the vector that a frozen text encoder made of it.
"""

import torch
from torch import Tensor, nn


class ChannelSelection(nn.Module):
    """Raise the channels that fit the site; 87,200 parameters for 160 channels and an indicator of 384.

    Args:
        channels: of the map.
        indicator: numbers of the indicator.
    """

    def __init__(self, channels: int, indicator: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels + indicator, channels)  # columns are [map, indicator]
        nn.init.trunc_normal_(self.gate.weight, std=0.02)
        nn.init.zeros_(self.gate.bias)

    def forward(self, features: Tensor, indicator: Tensor) -> Tensor:
        """(B, C, H, W), (D,) -> (B, C, H, W), every channel 1 to 2 times what it was."""
        pooled = features.mean((2, 3))
        # Eq. (7): sigmoid(FC([GAP(F), indicator])), the composite indicator (B, C)
        composite = self.gate(torch.cat([pooled, indicator.expand(pooled.shape[0], -1)], 1)).sigmoid()
        return features + features * composite[:, :, None, None]  # Eq. (8)


class Prompt(nn.Module):
    """Add an embedding of the indicator to every pixel: the ablation without selection (Table 4, third row).

    The paper does not say how the prompt comes in; this is ours. 61,440 parameters for 160 channels and an indicator
    of 384, all 0 at first; without a text, which is an indicator of zeros, nothing is added.

    Args:
        channels: of the map.
        indicator: numbers of the indicator.
    """

    def __init__(self, channels: int, indicator: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(indicator, channels, bias=False)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, features: Tensor, indicator: Tensor) -> Tensor:
        """(B, C, H, W), (D,) -> (B, C, H, W)."""
        return features + self.embedding(indicator)[:, None, None]
