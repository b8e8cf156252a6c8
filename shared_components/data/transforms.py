"""Resize and augment the frames of a sample and its targets together, and change the frames' colours.

An augmentation is sampled first, from an explicit generator, and applied afterwards: the same numbers give
the same pixels in every process, and what was drawn does not depend on what the pixels hold. Colours and
sharpness change so that a network cannot rely on one camera's. At strength 0 no colour changes and nothing is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import torch

from shared_components.data.targets import is_map

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
    """Resize ids or depth (..., H, W) to (..., height, width) by the nearest pixel's centre: no value is made up.

    OpenCV's plain nearest takes the pixel's corner, which moves a target against its image.

    Raises:
        ValueError: it is a vector or a scalar, which has no pixels.
    """
    if target.ndim < 2:
        raise ValueError(f"a target of shape {target.shape} is no map, and has no size; resize maps (..., H, W) alone")
    if target.shape[-2:] == (height, width):
        return target
    return _each(target, lambda one: cv2.resize(one, (width, height), interpolation=cv2.INTER_NEAREST_EXACT))


def sample_augmentation(
    generator: torch.Generator,
    *,
    width: int,
    smallest: float = SMALLEST_SCALE,
    largest: float = LARGEST_SCALE,
    flips: bool = True,
    crops: bool = True,
) -> Augmentation:
    """Draw one sample's augmentation, as the released PFedSIS does.

    Each flip with probability 0.5; a whole new width, uniform from half to twice `width` (pixels, before and after) or
    between other ends; a uniform crop. Without `flips`, or without `crops`, which keep frames whole, the rest is drawn
    alike.
    """
    flip_horizontal, flip_vertical, left, top = torch.rand(4, generator=generator).tolist()
    low, high = int(width * smallest), int(width * largest)
    new_width = int(torch.randint(low, high + 1, (), generator=generator))
    new_width = new_width if crops else width
    return Augmentation(flips and flip_horizontal < 0.5, flips and flip_vertical < 0.5, new_width, left, top)


def sample_turn(generator: torch.Generator, most: float) -> float:
    """Draw the degrees that a sample is turned by, uniform from `-most` to `most`; 0 draws nothing."""
    return 0.0 if most == 0 else float(2 * torch.rand((), generator=generator) - 1) * most


def turn(
    images: np.ndarray, targets: Mapping[str, np.ndarray], degrees: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Turn all frames and targets of a sample around the middle, counter-clockwise, keeping their size.

    Images are uint8 (T, H, W, 3), maps (H, W) or (T, H, W); other targets stay. Outside the frame are zeros. 0 degrees
    returns what was given.
    """
    if degrees == 0:
        return images, dict(targets)
    _, H, W, _ = images.shape
    matrix = cv2.getRotationMatrix2D(((W - 1) / 2, (H - 1) / 2), degrees, 1.0)
    frames = [cv2.warpAffine(image, matrix, (W, H), flags=cv2.INTER_LINEAR) for image in images]

    def turned(target: np.ndarray) -> np.ndarray:
        return cv2.warpAffine(target, matrix, (W, H), flags=cv2.INTER_NEAREST)

    return stacked(frames), _maps_changed(targets, turned)


def augment(
    images: np.ndarray, targets: Mapping[str, np.ndarray], augmentation: Augmentation
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Flip, scale and crop all frames and targets of a sample alike, keeping their size.

    A frame that becomes smaller is padded with zeros at the right and the bottom, as in the released PFedSIS. What is
    shown s times as large stands at 1/s of its distance, so depth is divided by s (Eigen et al., NeurIPS 2014, 4.2);
    0, unknown, stays 0. Resizing to the network's input is no zoom: it keeps the field of view, and depth as it is.

    Args:
        images: uint8 (T, H, W, 3).
        targets: maps (H, W) or (T, H, W), "depth" in mm; vectors and scalars stay as they are.
    """
    _, H, W, _ = images.shape
    height = int(H * augmentation.width / W + 0.5)
    frames = [_place(image, augmentation, height, resize_image) for image in images]

    def placed(target: np.ndarray) -> np.ndarray:
        return _place(target, augmentation, height, resize_target)

    moved = _maps_changed(targets, placed)
    if DEPTH in moved:
        moved[DEPTH] = moved[DEPTH] / np.float32(augmentation.width / W)
    return stacked(frames), moved


def _maps_changed(
    targets: Mapping[str, np.ndarray], change: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """Change every map, frame by frame; targets of another form stay."""
    return {name: _each(target, change) if is_map(name) else target for name, target in targets.items()}


def _each(target: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Change a target (H, W), or that of each frame of (T, H, W)."""
    return change(target) if target.ndim == 2 else np.stack([change(one) for one in target])


def stacked(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Turn T frames (H, W, 3) into (T, H, W, 3), without a copy where there is one frame."""
    return frames[0][None] if len(frames) == 1 else np.stack(frames)


def to_tensors(images: np.ndarray, targets: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Turn a sample's arrays, uint8 (T, H, W, 3) and targets of any form, into tensors of their own memory, by name.

    Returns:
        "image": uint8 (3, H, W), or (T, 3, H, W) where there are several frames; and the targets.
    """
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))  # (T, H, W, 3) -> (T, 3, H, W)
    image = torch.from_numpy(channels_first)
    own = {name: torch.from_numpy(np.array(target)) for name, target in targets.items()}
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


HUE = math.pi / 2  # the largest turn, either way
BLUR = 1.5  # pixels: the largest sigma
NOISE = 12.0  # grey levels: the largest sigma
BEST, WORST = 95, 20  # quality of JPEG
_LUMA = np.array([0.299, 0.587, 0.114])
_BANK = 1 << 21  # normal numbers that all noise is cut from


@dataclass(frozen=True)
class Colours:
    """What is done to the frames of one sample, in this order; the defaults do nothing.

    Attributes:
        blur: sigma in pixels.
        hue: radians that colours are turned by around grey; `saturation`: factor, 0 is grey-scale.
        gains: factor of each channel, red first; `gamma`, `contrast` (around mid-grey), `brightness` (added).
        veil, haze: brightness of a veil, and how much of the frame it covers, both of 0..1.
        noise: sigma in grey levels; `grain`: which noise.
        quality: of JPEG; 0: not compressed.
    """

    blur: float = 0.0
    hue: float = 0.0
    saturation: float = 1.0
    gains: tuple[float, float, float] = (1.0, 1.0, 1.0)
    gamma: float = 1.0
    contrast: float = 1.0
    brightness: float = 0.0
    veil: float = 0.0
    haze: float = 0.0
    noise: float = 0.0
    grain: int = 0
    quality: int = 0


UNCHANGED = Colours()
_CHANCES = {
    "blur": 0.3, "hue": 0.5, "saturation": 0.6, "gains": 0.6, "gamma": 0.5, "contrast": 0.5,
    "brightness": 0.5, "haze": 0.2, "noise": 0.4, "quality": 0.3,
}  # fmt: skip
_GREY = 0.08  # chance of no colour at all, at strength 1


def sample_colours(generator: torch.Generator, strength: float) -> Colours:
    """Draw one sample's changes; each is drawn with a chance of its own, and reaches as far as the strength says.

    Args:
        strength: from 0 (nothing is drawn) to 1: channels 0.7 to 1.4 times, hue turned by up to 90 degrees,
            saturation 0 to 1.6, gamma 0.5 to 2, blur up to 1.5 pixels, noise up to 12 grey levels, JPEG down to 20.
    """
    if strength == 0:
        return UNCHANGED
    happens = dict(zip(_CHANCES, torch.rand(len(_CHANCES), generator=generator).tolist(), strict=True))
    drawn = _amounts(torch.rand(15, generator=generator).tolist(), strength)
    kept = {name: drawn[name] for name, chance in _CHANCES.items() if happens[name] < chance}
    if "haze" in kept:
        kept["veil"] = drawn["veil"]
    if "noise" in kept:
        kept["grain"] = drawn["grain"]
    if drawn["grey"] < _GREY * strength:
        kept["saturation"] = 0.0
    return Colours(**kept)


def change_colours(images: np.ndarray, drawn: Colours) -> np.ndarray:
    """Apply what was drawn to uint8 RGB frames (T, H, W, 3), all alike; without a change they are returned as given."""
    if drawn == UNCHANGED:
        return images
    return np.stack([_change(image, drawn) for image in images])


def _amounts(u: list[float], strength: float) -> dict[str, Any]:
    """Turn uniform numbers of [0, 1) into how far each change goes."""
    signed = [strength * (2 * x - 1) for x in u]
    saturation = signed[2] * (0.6 if signed[2] > 0 else 1.0)
    return {
        "blur": BLUR * strength * u[0],
        "hue": HUE * signed[1],
        "saturation": 1 + saturation,
        "gains": tuple(1.4**x for x in signed[3:6]),
        "gamma": 2 ** signed[6],
        "contrast": 1 + 0.5 * signed[7],
        "brightness": 0.2 * signed[8],
        "haze": 0.5 * strength * u[9],
        "veil": 0.5 + 0.5 * u[10],
        "noise": NOISE * strength * u[11],
        "grain": int(u[14] * (_BANK // 2)),
        "quality": round(BEST - (BEST - WORST) * strength * u[12]),
        "grey": u[13],
    }


def _change(image: np.ndarray, drawn: Colours) -> np.ndarray:
    if drawn.blur > 0:
        image = cv2.GaussianBlur(image, (0, 0), drawn.blur)
    if drawn.hue or drawn.saturation != 1:
        image = cv2.transform(image, _turn(drawn.hue, drawn.saturation))
    if (table := _table(drawn)) is not None:
        image = cv2.LUT(image, table)
    if drawn.noise > 0:
        image = cv2.addWeighted(image, 1.0, _grain(image.shape, drawn.grain), drawn.noise, 0.0, dtype=cv2.CV_8U)
    if drawn.quality:
        _, coded = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, drawn.quality))
        return np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR))
    return image


def _turn(hue: float, saturation: float) -> np.ndarray:
    """Return the (3, 3) matrix that turns colours around grey, scales them, and keeps the luma."""
    k = 1 / math.sqrt(3)
    cross = k * np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    about = np.cos(hue) * np.eye(3) + np.sin(hue) * cross + (1 - np.cos(hue)) * np.full((3, 3), 1 / 3)
    luma = np.tile(_LUMA, (3, 1))
    colour = about - np.tile(_LUMA @ about, (3, 1))  # what is left of a turned colour without its luma
    return (luma + saturation * colour).astype(np.float32)


def _table(drawn: Colours) -> np.ndarray | None:
    """Return gains, gamma, contrast, brightness and haze as one table (1, 256, 3); None where they change nothing."""
    points = (drawn.gains, drawn.gamma, drawn.contrast, drawn.brightness, drawn.haze)
    if points == ((1.0, 1.0, 1.0), 1.0, 1.0, 0.0, 0.0):
        return None
    values = np.arange(256, dtype=np.float64)[:, None] / 255 * np.array(drawn.gains)  # (256, 3)
    values = values.clip(0, 1) ** drawn.gamma
    values = (values - 0.5) * drawn.contrast + 0.5 + drawn.brightness
    values = values.clip(0, 1) * (1 - drawn.haze) + drawn.veil * drawn.haze
    return np.rint(values.clip(0, 1) * 255).astype(np.uint8)[None]


def _grain(shape: tuple[int, ...], start: int) -> np.ndarray:
    """Cut float32 normal noise of a shape out of the bank."""
    count = math.prod(shape)
    bank = _bank()
    if start + count > len(bank):
        start = start % max(len(bank) - count, 1)
    cut = bank[start : start + count]
    return (cut if len(cut) == count else np.resize(cut, count)).reshape(shape)


@lru_cache(maxsize=1)
def _bank() -> np.ndarray:
    return np.random.Generator(np.random.PCG64(0)).standard_normal(_BANK, dtype=np.float32)
