"""Sequence networks on frame features: an LSTM classifies clips, causal convolutions classify frames.

GynSurg's LSTM as used by FL-EndoViT (arXiv 2504.16612), and the second stage of TeCNO (Czempiel et al., MICCAI 2020).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DROPOUT = 0.5


class FeatureLstm(nn.Module):
    """Classify a clip by a projection to `width`, an LSTM of two layers, and a linear layer on its last output."""

    def __init__(self, *, features: int, out_channels: int, width: int = 512, hidden: int = 256) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, dropout=DROPOUT)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(hidden, out_channels)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return logits: (B, T, D) -> (B, out_channels)."""
        outputs, _state = self.lstm(self.enter(sequence))
        return self.head(self.dropout(outputs[:, -1]))


class CausalTcn(nn.Module):
    """Classify every frame by two stages of dilated causal convolutions; the second refines the first.

    A stage has `layers` of `maps` channels; layer i has dilation 2^i.
    """

    def __init__(self, *, features: int, out_channels: int, layers: int = 9, maps: int = 64) -> None:
        super().__init__()
        in_channels = [features, out_channels]  # of each stage
        self.stages = nn.ModuleList(_stage(channels, maps, layers) for channels in in_channels)
        self.heads = nn.ModuleList(nn.Conv1d(maps, out_channels, 1) for _ in in_channels)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return the logits of every stage: (B, T, D) -> (S, B, T, out_channels)."""
        stages = []
        x = sequence.transpose(1, 2)  # (B, T, D) -> (B, D, T)
        for stage, head in zip(self.stages, self.heads):  # noqa: B905 # TorchScript does not know strict
            logits = head(stage(x))
            stages.append(logits.transpose(1, 2))  # (B, C, T) -> (B, T, C)
            x = logits.softmax(1)
        return torch.stack(stages)


def _stage(in_channels: int, maps: int, layers: int) -> nn.Sequential:
    """Build a stage: (B, in_channels, T) -> (B, maps, T)."""
    dilated = [Dilated(maps, 2**layer) for layer in range(layers)]  # drawn before the first layer
    return nn.Sequential(nn.Conv1d(in_channels, maps, 1), *dilated)


class Dilated(nn.Module):
    """Causal convolution of three frames, ``dilation`` apart, with a residual connection."""

    def __init__(self, maps: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.dilated = nn.Conv1d(maps, maps, 3, dilation=dilation)
        self.mix = nn.Conv1d(maps, maps, 1)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T), with zero padding before the first frame."""
        return x + self.dropout(self.mix(F.relu(self.dilated(F.pad(x, (self.past, 0))))))
