"""Networks of sequences, of which a frame is a vector: an LSTM labels clips, causal convolutions label frames.

GynSurg's LSTM as FL-EndoViT uses it (arXiv 2504.16612), and the second stage of TeCNO (Czempiel et al., MICCAI 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.arguments import between


class FeatureLstm(nn.Module):
    """Label a clip: features to ``width`` numbers, two layers of LSTM, a linear layer on the last output.

    Args:
        features: Numbers per frame.
        out_channels: Classes.
        width: Numbers that the LSTM is given.
        hidden: Of each of its layers.
        dropout: Between its layers, and before the classifier.
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
        """(B, T, D) -> logits (B, out_channels)."""
        outputs, _state = self.lstm(self.enter(sequence))
        return self.head(self.dropout(outputs[:, -1]))


class CausalTcn(nn.Module):
    """Label every frame from it and those before it: stages of dilated causal convolutions, each refining the last.

    Args:
        features: Numbers per frame.
        out_channels: Classes.
        stages, layers, maps: How many stages, layers a stage, and maps a layer; layer i sees 2^i frames back, twice.
        dropout: Of a layer's maps.
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
        """(B, T, D) -> logits of every stage (S, B, T, out_channels), the last stage's last."""
        found = []
        x = sequence.transpose(1, 2)  # (B, T, D) -> (B, D, T)
        for stage, head in zip(self.stages, self.heads):  # noqa: B905 # TorchScript does not know strict
            logits = head(stage(x))
            found.append(logits.transpose(1, 2))  # (B, C, T) -> (B, T, C)
            x = logits.softmax(1)
        return torch.stack(found)


def _stage(given: int, maps: int, layers: int, dropout: float) -> nn.Sequential:
    """(B, given, T) -> (B, maps, T)."""
    dilated = [Dilated(maps, 2**layer, dropout) for layer in range(layers)]
    return nn.Sequential(nn.Conv1d(given, maps, 1), *dilated)


class Dilated(nn.Module):
    """A causal convolution of three frames, ``dilation`` apart, beside a way around it."""

    def __init__(self, maps: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.dilated = nn.Conv1d(maps, maps, 3, dilation=dilation)
        self.mix = nn.Conv1d(maps, maps, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T); what is before the first frame counts as 0."""
        return x + self.dropout(self.mix(F.relu(self.dilated(F.pad(x, (self.past, 0))))))
