"""A network with a few thousand parameters for tests: images and clips, in milliseconds on a CPU.

It learns next to nothing; a federation with it takes seconds.
"""

from functools import partial
from typing import Final

from torch import Tensor, nn
from torch.nn import functional as F


class Tiny(nn.Module):
    """Small encoder-decoder; 5,476 parameters for four channels.

    The features of a clip's earlier frames are averaged over time. An image is treated as a clip of identical frames.

    Args:
        out_channels: Output channels, such as the number of classes including background.
        width: Channels of the features, a positive multiple of 4.
        dropout: Channel dropout of the merged features.
    """

    stride: Final = 4  # stride of the feature map in pixels
    takes_clips: Final = True

    def __init__(self, *, out_channels: int = 4, width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        if width < 4 or width % 4:
            raise ValueError(f"Tiny: width is {width}; give a positive multiple of 4")
        self.remade = partial(Tiny, width=width, dropout=dropout)
        layers: list[nn.Module] = []
        for channels in (3, width):
            convolution = nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
        self.encoder = nn.Sequential(*layers)
        self.past = nn.Conv2d(width, width, 1)
        self.decoder = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.GroupNorm(4, width), nn.ReLU(), nn.Dropout2d(dropout)
        )
        self.head = nn.Conv2d(width, out_channels, 1)
        parts = {"encoder": ("encoder",), "decoder": ("past", "decoder"), "head": ("head",), "top": ("decoder", "head")}
        self.parts: dict[str, tuple[str, ...]] = parts

    def with_classes(self, out_channels: int) -> "Tiny":
        """Return a newly initialised network with another number of output channels."""
        return self.remade(out_channels=out_channels)

    def forward(self, image: Tensor) -> Tensor:
        """Predict the current frame: (B, 3, H, W) or clips (B, T, 3, H, W) in [0, 1] -> (B, out_channels, H, W).

        The current frame of a clip is the last; H and W are multiples of 4, else ValueError.
        """
        if image.dim() not in (4, 5) or image.shape[-3] != 3 or image.shape[-1] % 4 or image.shape[-2] % 4:
            raise ValueError(
                f"Tiny takes images (B, 3, H, W) or clips (B, T, 3, H, W), height and width multiples of "
                f"{self.stride}, and got {list(image.shape)}"
            )
        current, past = self._features(image)
        logits = self.head(self.decoder(current + self.past(past)))
        return F.interpolate(logits, scale_factor=4.0, mode="bilinear", align_corners=False)

    def _features(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features (B, C, H/4, W/4) of the current frame and the mean features of earlier frames."""
        if image.dim() == 4:
            features = self.encoder(image)
            return features, features
        B, T, C, H, W = image.shape
        # (B, T, 3, H, W) -> (B*T, 3, H, W) -> (B*T, width, H/4, W/4) -> (B, T, width, H/4, W/4)
        features = self.encoder(image.reshape(B * T, C, H, W))
        frames = features.reshape(B, T, features.shape[1], features.shape[2], features.shape[3])
        return frames[:, -1], frames[:, :-1].mean(1) if T > 1 else frames[:, -1]
