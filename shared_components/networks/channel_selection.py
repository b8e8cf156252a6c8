"""Channel selection by a site's text: FedST's CS, the equal LCS of the SurgFed paper, and SurgFed's released variant.

`Prompt` is the ablation of both papers, a text without channel selection.

Fang et al., IEEE TMI 2026 (arXiv 2506.23759), Section 3.2.2; Fang et al., "SurgFed" (arXiv 2603.09496), Section III-B.
"""

import torch
from torch import Tensor, nn

RELEASED_WIDTH = 256  # width of the released text embedding


class ChannelSelection(nn.Module):
    """Amplify channels by a site's text, given as the vector of a frozen text encoder.

    FedST's Eqs. 7 and 8; SurgFed's Eq. 2 and its residual. 87,200 parameters for 160 channels and an indicator of 384.
    """

    def __init__(self, channels: int, indicator: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels + indicator, channels)  # columns are [map, indicator]
        nn.init.trunc_normal_(self.gate.weight, std=0.02)
        nn.init.zeros_(self.gate.bias)

    def forward(self, features: Tensor, indicator: Tensor) -> Tensor:
        """Scale every channel by a factor of 1 to 2: (B, C, H, W), (D,) -> (B, C, H, W)."""
        pooled = features.mean((2, 3))  # (B, C, H, W) -> (B, C)
        # sigmoid(FC([GAP(F), indicator])), the composite indicator: (B, C + D) -> (B, C)
        composite = self.gate(torch.cat([pooled, indicator.expand(pooled.shape[0], -1)], 1)).sigmoid()
        return features + features * composite[:, :, None, None]


class ReleasedSelection(nn.Module):
    """Channel selection of SurgFed's released code: F + gF for depth, and F + ge for segmentation.

    Two linear layers embed the text as e; the gate g reads [GAP(F), e]. The released code trains neither.

    Args:
        channels: Channels of the feature map F and of e.
        indicator: Length of the text's vector.
        adds_text: Use the form for segmentation; the shapes are the same for depth.
    """

    def __init__(self, channels: int, indicator: int, *, adds_text: bool = True) -> None:
        super().__init__()
        width = RELEASED_WIDTH
        self.embedding = nn.Sequential(nn.Linear(indicator, width), nn.ReLU(), nn.Linear(width, channels))
        self.gate = nn.Linear(2 * channels, channels)  # columns are [map, text]
        self.adds_text = adds_text

    def forward(self, features: Tensor, indicator: Tensor) -> Tensor:
        """(B, C, H, W), (D,) -> (B, C, H, W)."""
        text = self.embedding(indicator).expand(features.shape[0], -1)  # (D,) -> (B, C)
        gate = self.gate(torch.cat([features.mean((2, 3)), text], 1)).sigmoid()  # (B, 2C) -> (B, C)
        if self.adds_text:
            return features + (gate * text)[:, :, None, None]
        return features + features * gate[:, :, None, None]


class Prompt(nn.Module):
    """Add an embedding of the text to every pixel: the ablation without channel selection.

    It is FedST's Table 4, third row, and SurgFed's Table II, fourth row. Neither paper describes how the text enters
    the network; this is our choice. 61,440 parameters for 160 channels and an indicator of 384, initially 0. A zero
    indicator, which stands for no text, adds nothing.
    """

    def __init__(self, channels: int, indicator: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(indicator, channels, bias=False)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, features: Tensor, indicator: Tensor) -> Tensor:
        """(B, C, H, W), (D,) -> (B, C, H, W)."""
        return features + self.embedding(indicator)[:, None, None]  # (D,) -> (C, 1, 1)


def copy_indicator(network: nn.Module, indicator: Tensor, *, has_text: bool) -> None:
    """Copy a text's vector (D,) into the network's buffer `indicator`.

    Raises ValueError for another shape, non-finite numbers, or a network without text.
    """
    kind = type(network).__name__
    if not has_text:
        raise ValueError(f"{kind} was made with text 'none'; make it with 'selection' or 'prompt'")
    buffer = network.get_buffer("indicator")
    if indicator.shape != buffer.shape:
        raise ValueError(f"{kind} takes an indicator of shape {list(buffer.shape)}, and got {list(indicator.shape)}")
    if not bool(torch.isfinite(indicator).all()):
        raise ValueError(f"{kind} got an indicator with non-finite numbers; compute it again")
    buffer.copy_(indicator.detach())
