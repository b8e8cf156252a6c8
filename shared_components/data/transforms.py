"""Resize and augment a frame and its mask together, as pure functions.

An augmentation is sampled first, from an explicit generator, and applied afterwards: the same numbers give
the same pixels in every process, and what was drawn does not depend on what the pixels hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import torch

SMALLEST_SCALE, LARGEST_SCALE = 0.5, 2.0


@dataclass(frozen=True)
class Augmentation:
    """Flips, a new width in pixels, and where the crop lies in the scaled frame, as shares of the room."""

    flip_horizontal: bool
    flip_vertical: bool
    width: int
    left: float
    top: float


def resize_image(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize uint8 (H, W, 3) to uint8 (height, width, 3).

    Bilinear, over the area of the new pixel where it shrinks; without the area, thin instruments would alias.
    """
    H, W = image.shape[:2]
    if (H, W) == (height, width):
        return image
    method = cv2.INTER_AREA if height <= H and width <= W else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=method)


def resize_mask(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize uint8 ids (H, W) to (height, width) by the nearest pixel's centre.

    OpenCV's plain nearest takes the pixel's corner, which moves a mask against its image.
    """
    if mask.shape == (height, width):
        return mask
    return cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)


def sample_augmentation(generator: torch.Generator, *, width: int) -> Augmentation:
    """Draw one frame's augmentation, as the released PFedSIS does.

    Each flip with probability 0.5; a whole new width, uniform from half to twice `width`; a uniform crop.

    Args:
        width: width of the frame in pixels, before and after.
    """
    flip_horizontal, flip_vertical, left, top = torch.rand(4, generator=generator).tolist()
    low, high = int(width * SMALLEST_SCALE), int(width * LARGEST_SCALE)
    new_width = int(torch.randint(low, high + 1, (), generator=generator))
    return Augmentation(flip_horizontal < 0.5, flip_vertical < 0.5, new_width, left, top)


def augment(image: np.ndarray, mask: np.ndarray, augmentation: Augmentation) -> tuple[np.ndarray, np.ndarray]:
    """Flip, scale and crop a frame and its mask alike, keeping their size.

    A frame that becomes smaller is padded with zeros at the right and the bottom, as in the released PFedSIS.

    Args:
        image: uint8 (H, W, 3).
        mask: uint8 (H, W).
    """
    H, W = mask.shape
    width = augmentation.width
    height = int(H * width / W + 0.5)
    flips = (
        slice(None, None, -1 if augmentation.flip_vertical else 1),
        slice(None, None, -1 if augmentation.flip_horizontal else 1),
    )
    scaled_image = resize_image(np.ascontiguousarray(image[flips]), height, width)
    scaled_mask = resize_mask(np.ascontiguousarray(mask[flips]), height, width)
    top, left = _offset(augmentation.top, height - H), _offset(augmentation.left, width - W)
    window = (slice(top, top + H), slice(left, left + W))
    return _pad(scaled_image[window], H, W), _pad(scaled_mask[window], H, W)


def to_tensors(image: np.ndarray, mask: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn uint8 (H, W, 3) and (H, W) arrays into uint8 (3, H, W) and (H, W) tensors of their own memory."""
    channels_first = np.ascontiguousarray(image.transpose(2, 0, 1))  # (H, W, 3) -> (3, H, W)
    return torch.from_numpy(channels_first), torch.from_numpy(mask.copy())


def _offset(share: float, room: int) -> int:
    """Place a crop: share 0 to 1 (exclusive) of the whole offsets 0 to `room`; 0 where there is no room."""
    return int(share * (room + 1)) if room > 0 else 0


def _pad(array: np.ndarray, height: int, width: int) -> np.ndarray:
    """Fill up an array at the bottom and the right with zeros."""
    if array.shape[:2] == (height, width):
        return array
    padded = np.zeros((height, width, *array.shape[2:]), dtype=array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded
