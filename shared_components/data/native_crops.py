"""Crop frames at their native resolution before they are resized, for masked autoencoders.

RandomResizedCrop of He et al., CVPR 2022, Appendix A.1: 0.2 to 1 of the area (0.6 to 1 in EndoViT and FL-EndoViT),
resized bicubically, then a horizontal flip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
import torch

_TRIES = 10
_LEAST_RATIO = 3 / 4  # of width to height; the largest is its inverse


@dataclass(frozen=True)
class NativeCrop:
    """What was drawn for one sample, whatever its frames' size.

    Attributes:
        tries: (share of the area, ratio of width to height), of which the first that fits is taken.
        left, top: where the crop lies, as shares of the room, 0 to 1 (exclusive).
        mirrored: whether left and right are exchanged.
    """

    tries: tuple[tuple[float, float], ...]
    left: float
    top: float
    mirrored: bool

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, height and width of the crop in a frame of this size, in pixels.

        Where no try fits, it is the largest one in the middle whose ratio is allowed.
        """
        for area, ratio in self.tries:
            w, h = round(math.sqrt(area * height * width * ratio)), round(math.sqrt(area * height * width / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(self.top * (height - h + 1)), int(self.left * (width - w + 1)), h, w
        w = min(width, round(height / _LEAST_RATIO))
        h = min(height, round(width / _LEAST_RATIO))
        return (height - h) // 2, (width - w) // 2, h, w


def sample_native_crop(generator: torch.Generator, least: float, *, flips: bool = True) -> NativeCrop:
    """Draw a crop of a share of the area uniform from `least` to 1; always as many numbers, also without `flips`."""
    areas, ratios = torch.rand(2, _TRIES, generator=generator).tolist()
    left, top, mirrored = torch.rand(3, generator=generator).tolist()
    log = math.log(_LEAST_RATIO)
    tries = tuple((least + (1 - least) * a, math.exp(log * (1 - 2 * r))) for a, r in zip(areas, ratios, strict=True))
    return NativeCrop(tries, left, top, flips and mirrored < 0.5)


def crop_native(image: np.ndarray, drawn: NativeCrop, height: int, width: int) -> np.ndarray:
    """Crop uint8 (H, W, 3) and resize it bicubically to (height, width, 3), over the new pixel's area if it shrinks.

    OpenCV's bicubic takes four pixels however far it shrinks: by 2 or more, the frame is halved first by means. That
    leaves out an odd last row or column, since OpenCV is three times slower where a half is no whole number.
    """
    top, left, h, w = drawn.box(*image.shape[:2])
    part = image[top : top + h, left : left + w]
    while part.shape[0] >= 2 * height and part.shape[1] >= 2 * width:
        rows, columns = part.shape[0] // 2, part.shape[1] // 2
        part = cv2.resize(part[: 2 * rows, : 2 * columns], (columns, rows), interpolation=cv2.INTER_AREA)
    resized = cv2.resize(part, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.flip(resized, 1) if drawn.mirrored else resized
