"""Sequence networks on frame features: an LSTM classifies clips, causal convolutions classify frames.

GynSurg's LSTM as used by FL-EndoViT (arXiv 2504.16612), and the second stage of TeCNO (Czempiel et al., MICCAI 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.arguments import between


class FeatureLstm(nn.Module):
    """Classify a clip by a projection, an LSTM of two layers, and a linear layer on its last output.

    Args:
        features: Number of features per frame.
        out_channels: Number of classes.
        width: Input size of the LSTM.
        hidden: Hidden size of each LSTM layer.
        dropout: Dropout probability between the LSTM's layers and before the classifier.
    """

    def __init__(
        self, *, features: int, out_channels: int, width: int = 512, hidden: int = 256, dropout: float = 0.5
    ) -> None:
        super().__init__()
        between("FeatureLstm", "features", features, 1, whole=True)
        between("FeatureLstm", "out_channels", out_channels, 1, whole=True)
        between("FeatureLstm", "dropout", dropout, 0, 1, ends="[)")
        self.enter = nn.Linear(features, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, out_channels)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return logits: (B, T, D) -> (B, out_channels)."""
        outputs, _state = self.lstm(self.enter(sequence))
        return self.head(self.dropout(outputs[:, -1]))


class CausalTcn(nn.Module):
    """Classify every frame by stages of dilated causal convolutions, each refining the stage before.

    Args:
        features: Number of features per frame.
        out_channels: Number of classes.
        stages, layers, maps: Number of stages, layers per stage, and channels per layer; layer i has dilation 2^i.
        dropout: Dropout probability of a layer.
    """

    def __init__(
        self,
        *,
        features: int,
        out_channels: int,
        stages: int = 2,
        layers: int = 9,
        maps: int = 64,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        for name, value in (("features", features), ("out_channels", out_channels), ("stages", stages)):
            between("CausalTcn", name, value, 1, whole=True)
        between("CausalTcn", "dropout", dropout, 0, 1, ends="[)")
        given = [features, *[out_channels] * (stages - 1)]
        self.stages = nn.ModuleList(_stage(channels, maps, layers, dropout) for channels in given)
        self.heads = nn.ModuleList(nn.Conv1d(maps, out_channels, 1) for _ in given)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return the logits of every stage: (B, T, D) -> (S, B, T, out_channels)."""
        stages = []
        x = sequence.transpose(1, 2)  # (B, T, D) -> (B, D, T)
        for stage, head in zip(self.stages, self.heads):  # noqa: B905 # TorchScript does not know strict
            logits = head(stage(x))
            stages.append(logits.transpose(1, 2))  # (B, C, T) -> (B, T, C)
            x = logits.softmax(1)
        return torch.stack(stages)


def _stage(given: int, maps: int, layers: int, dropout: float) -> nn.Sequential:
    """Build a stage: (B, given, T) -> (B, maps, T)."""
    dilated = [Dilated(maps, 2**layer, dropout) for layer in range(layers)]
    return nn.Sequential(nn.Conv1d(given, maps, 1), *dilated)


class Dilated(nn.Module):
    """Causal convolution of three frames, ``dilation`` apart, with a residual connection."""

    def __init__(self, maps: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.dilated = nn.Conv1d(maps, maps, 3, dilation=dilation)
        self.mix = nn.Conv1d(maps, maps, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T), with zero padding before the first frame."""
        return x + self.dropout(self.mix(F.relu(self.dilated(F.pad(x, (self.past, 0))))))
