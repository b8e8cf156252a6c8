"""Crop frames at native resolution before they are resized, for masked autoencoders.

RandomResizedCrop of He et al., CVPR 2022, Appendix A.1: 0.2 to 1 of the area (0.6 to 1 in EndoViT and FL-EndoViT),
bicubic resizing, then a horizontal flip.
"""

import math
from dataclasses import dataclass

import cv2
import numpy as np
import torch

_TRIES = 10
_MIN_RATIO = 3 / 4  # width to height; the maximum is the inverse


@dataclass(frozen=True)
class NativeCrop:
    """Random draws for one sample, independent of the size of its frames."""

    tries: tuple[tuple[float, float], ...]  # (share of the area, ratio of width to height); the first that fits counts
    left: float  # position of the crop as a share of the free room, 0 to 1 (exclusive)
    top: float
    mirrored: bool

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, height and width in pixels; if no try fits, of the largest permitted central crop."""
        for area, ratio in self.tries:
            w, h = round(math.sqrt(area * height * width * ratio)), round(math.sqrt(area * height * width / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(self.top * (height - h + 1)), int(self.left * (width - w + 1)), h, w
        w = min(width, round(height / _MIN_RATIO))
        h = min(height, round(width / _MIN_RATIO))
        return (height - h) // 2, (width - w) // 2, h, w


def sample_native_crop(generator: torch.Generator, least: float, *, flips: bool = True) -> NativeCrop:
    """Draw a crop with a share of the area uniform from `least` to 1; `flips` does not change the other draws."""
    areas, ratios = torch.rand(2, _TRIES, generator=generator).tolist()
    left, top, mirrored = torch.rand(3, generator=generator).tolist()
    log = math.log(_MIN_RATIO)
    tries = tuple((least + (1 - least) * a, math.exp(log * (1 - 2 * r))) for a, r in zip(areas, ratios, strict=True))
    return NativeCrop(tries, left, top, flips and mirrored < 0.5)


def crop_native(image: np.ndarray, crop: NativeCrop, height: int, width: int) -> np.ndarray:
    """Crop uint8 (H, W, 3) and resize it bicubically to (height, width, 3).

    OpenCV's bicubic uses four pixels at any scale, so a crop is halved by means while it is twice as large. Halving
    drops an odd last row or column: OpenCV is three times slower if a half is no whole number.
    """
    top, left, h, w = crop.box(*image.shape[:2])
    part = image[top : top + h, left : left + w]
    while part.shape[0] >= 2 * height and part.shape[1] >= 2 * width:
        rows, columns = part.shape[0] // 2, part.shape[1] // 2
        part = cv2.resize(part[: 2 * rows, : 2 * columns], (columns, rows), interpolation=cv2.INTER_AREA)
    resized = cv2.resize(part, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.flip(resized, 1) if crop.mirrored else resized
