"""Resize and augment the frames of a sample and its targets together, as pure functions.

An augmentation is sampled first, from an explicit generator, and applied afterwards: the same numbers give
the same pixels in every process, and what was drawn does not depend on what the pixels hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch

SMALLEST_SCALE, LARGEST_SCALE = 0.5, 2.0
DEPTH = "depth"  # the target that is a distance


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


def resize_target(target: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize ids or depth (H, W) to (height, width) by the nearest pixel's centre: no value is made up.

    OpenCV's plain nearest takes the pixel's corner, which moves a target against its image.
    """
    if target.shape == (height, width):
        return target
    return cv2.resize(target, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)


def sample_augmentation(
    generator: torch.Generator,
    *,
    width: int,
    smallest: float = SMALLEST_SCALE,
    largest: float = LARGEST_SCALE,
    flips: bool = True,
) -> Augmentation:
    """Draw one sample's augmentation, as the released PFedSIS does.

    Each flip with probability 0.5; a whole new width, uniform from half to twice `width`; a uniform crop.

    Args:
        width: width of the frame in pixels, before and after.
        smallest, largest: other ends than half and twice.
        flips: without them the rest is drawn alike.
    """
    flip_horizontal, flip_vertical, left, top = torch.rand(4, generator=generator).tolist()
    low, high = int(width * smallest), int(width * largest)
    new_width = int(torch.randint(low, high + 1, (), generator=generator))
    return Augmentation(flips and flip_horizontal < 0.5, flips and flip_vertical < 0.5, new_width, left, top)


def sample_turn(generator: torch.Generator, most: float) -> float:
    """Draw the degrees that a sample is turned by, uniform from `-most` to `most`; 0 draws nothing."""
    return 0.0 if most == 0 else float(2 * torch.rand((), generator=generator) - 1) * most


def turn(
    images: np.ndarray, targets: Mapping[str, np.ndarray], degrees: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Turn all frames and targets of a sample around the middle, counter-clockwise, keeping their size.

    What comes in from outside is zeros. 0 degrees returns what was given.

    Args:
        images: uint8 (T, H, W, 3).
        targets: each (H, W).
    """
    if degrees == 0:
        return images, dict(targets)
    _, H, W, _ = images.shape
    matrix = cv2.getRotationMatrix2D(((W - 1) / 2, (H - 1) / 2), degrees, 1.0)
    frames = [cv2.warpAffine(image, matrix, (W, H), flags=cv2.INTER_LINEAR) for image in images]
    moved = {name: cv2.warpAffine(target, matrix, (W, H), flags=cv2.INTER_NEAREST) for name, target in targets.items()}
    return stacked(frames), moved


def augment(
    images: np.ndarray, targets: Mapping[str, np.ndarray], augmentation: Augmentation
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Flip, scale and crop all frames and targets of a sample alike, keeping their size.

    A frame that becomes smaller is padded with zeros at the right and the bottom, as in the released PFedSIS. What is
    shown s times as large stands at 1/s of its distance, so depth is divided by s (Eigen et al., NeurIPS 2014, 4.2);
    0, unknown, stays 0. Resizing to the network's input is no zoom: it keeps the field of view, and depth as it is.

    Args:
        images: uint8 (T, H, W, 3).
        targets: each (H, W), "depth" in mm.
    """
    _, H, W, _ = images.shape
    height = int(H * augmentation.width / W + 0.5)
    frames = [_place(image, augmentation, height, resize_image) for image in images]
    moved = {name: _place(target, augmentation, height, resize_target) for name, target in targets.items()}
    if DEPTH in moved:
        moved[DEPTH] = moved[DEPTH] / np.float32(augmentation.width / W)
    return stacked(frames), moved


def stacked(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Turn T frames (H, W, 3) into (T, H, W, 3), without a copy where there is one frame."""
    return frames[0][None] if len(frames) == 1 else np.stack(frames)


def to_tensors(images: np.ndarray, targets: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Turn a sample's arrays into tensors of their own memory, by name.

    Args:
        images: uint8 (T, H, W, 3).
        targets: each (H, W).

    Returns:
        "image": uint8 (3, H, W), or (T, 3, H, W) where there are several frames; and the targets.
    """
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))  # (T, H, W, 3) -> (T, 3, H, W)
    image = torch.from_numpy(channels_first)
    own = {name: torch.from_numpy(target.copy()) for name, target in targets.items()}
    return {"image": image[0] if len(image) == 1 else image, **own}


def _place(
    array: np.ndarray, augmentation: Augmentation, height: int, resize: Callable[[np.ndarray, int, int], np.ndarray]
) -> np.ndarray:
    """Flip one array (H, W, ...), scale it to `height` and the augmentation's width, and crop it to (H, W)."""
    H, W = array.shape[:2]
    flips = (
        slice(None, None, -1 if augmentation.flip_vertical else 1),
        slice(None, None, -1 if augmentation.flip_horizontal else 1),
    )
    scaled = resize(np.ascontiguousarray(array[flips]), height, augmentation.width)
    top, left = _offset(augmentation.top, height - H), _offset(augmentation.left, augmentation.width - W)
    return _pad(scaled[top : top + H, left : left + W], H, W)


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
