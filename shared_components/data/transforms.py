"""Resize and augment the frames and targets of a sample together, and change the frames' colours.

An augmentation is sampled first, from an explicit generator, and then applied. Equal draws give equal pixels in every
process, and the draws do not depend on the pixels. Colour changes keep a network from relying on one camera's colours.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import torch

from shared_components.data.targets import is_map

_JPEG_QUALITY = 95, 20  # at strength 0 and 1
_LUMA = np.array([0.299, 0.587, 0.114])
_FLIPS = {(True, False): 1, (False, True): 0, (True, True): -1}  # OpenCV's code by (horizontal, vertical)
_BANK_SIZE = 1 << 21  # normal random numbers from which all noise is cut


@dataclass(frozen=True)
class Augmentation:
    """Flips, new width in pixels, and position of the crop in the scaled frame, as shares of the free room."""

    flip_horizontal: bool
    flip_vertical: bool
    width: int
    left: float
    top: float

    def place(self, height: int, width: int) -> tuple[int, int, int]:
        """Return the height of a scaled frame of (height, width), and the top and left of the crop in it, in pixels."""
        scaled = int(height * self.width / width + 0.5)
        rooms = (self.top, scaled - height), (self.left, self.width - width)
        top, left = (int(share * (room + 1)) if room > 0 else 0 for share, room in rooms)
        return scaled, top, left

    def zoom(self, width: int) -> np.float32:
        """Return the factor by which frames of this width grow."""
        return np.float32(self.width / width)


def resize_image(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize uint8 (H, W, 3) to uint8 (height, width, 3): bilinear, or by area if it shrinks, against aliasing."""
    H, W = image.shape[:2]
    if (H, W) == (height, width):
        return image
    method = cv2.INTER_AREA if height <= H and width <= W else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=method)


def resize_target(target: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize ids or depth (..., H, W) to (..., height, width) by the nearest pixel; ValueError for no map."""
    if target.ndim < 2:
        raise ValueError(f"a target of shape {target.shape} is no map and has no size; resize only maps (..., H, W)")
    if target.shape[-2:] == (height, width):
        return target
    # INTER_NEAREST would take the corner of a pixel, which shifts a target against its image
    return _each(target, lambda frame: cv2.resize(frame, (width, height), interpolation=cv2.INTER_NEAREST_EXACT))


def sample_augmentation(
    generator: torch.Generator,
    *,
    width: int,
    smallest: float = 0.5,
    largest: float = 2.0,
    flips: bool = True,
    crops: bool = True,
) -> Augmentation:
    """Draw a sample's augmentation, as the released PFedSIS code does.

    Each flip has probability 0.5. The new width in pixels is uniform from `smallest` to `largest` times `width`, and
    the crop is uniform. Without `flips` or `crops`, which keep frames whole, the other draws stay equal.
    """
    flip_horizontal, flip_vertical, left, top = torch.rand(4, generator=generator).tolist()
    low, high = int(width * smallest), int(width * largest)
    new_width = int(torch.randint(low, high + 1, (), generator=generator))
    new_width = new_width if crops else width
    return Augmentation(flips and flip_horizontal < 0.5, flips and flip_vertical < 0.5, new_width, left, top)


def sample_turn(generator: torch.Generator, most: float) -> float:
    """Draw a rotation in degrees, uniform from `-most` to `most`; 0 draws nothing."""
    return 0.0 if most == 0 else float(2 * torch.rand((), generator=generator) - 1) * most


def turn(
    images: np.ndarray, targets: Mapping[str, np.ndarray], degrees: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rotate all frames, uint8 (T, H, W, 3), and maps, (H, W) or (T, H, W), counter-clockwise around the centre.

    The size stays; the outside becomes zero. 0 degrees returns the arguments.
    """
    if degrees == 0:
        return images, dict(targets)
    _, H, W, _ = images.shape
    matrix = turn_matrix(degrees, H, W)
    frames = [cv2.warpAffine(image, matrix, (W, H), flags=cv2.INTER_LINEAR) for image in images]
    return stack_frames(frames), _change_maps(
        targets, lambda target: cv2.warpAffine(target, matrix, (W, H), flags=cv2.INTER_NEAREST)
    )


def turn_matrix(degrees: float, height: int, width: int) -> np.ndarray:
    """Return the matrix (2, 3) from pixels (x, y, 1) of a frame to pixels of the rotated frame."""
    return cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)


def augment(
    images: np.ndarray, targets: Mapping[str, np.ndarray], augmentation: Augmentation
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Flip, scale and crop all frames and targets of a sample alike; their size stays.

    A frame that shrinks is padded with zeros at the right and the bottom, as in the released PFedSIS code. A zoom by s
    divides depth by s (Eigen et al., NeurIPS 2014, 4.2); 0, unknown, stays 0. Resizing to the network's input is no
    zoom: the field of view and the depth stay. Images are uint8 (T, H, W, 3), maps (H, W) or (T, H, W), depth in mm.
    """
    frames = [_place(image, augmentation, resize_image) for image in images]
    moved = _change_maps(targets, lambda target: _place(target, augmentation, resize_target))
    if "depth" in moved:
        moved["depth"] = moved["depth"] / augmentation.zoom(images.shape[2])
    return stack_frames(frames), moved


def _change_maps(
    targets: Mapping[str, np.ndarray], change: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """Change every map, frame by frame; other targets stay."""
    return {name: _each(target, change) if is_map(name) else target for name, target in targets.items()}


def _each(target: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Change a target (H, W), or each frame of (T, H, W)."""
    return change(target) if target.ndim == 2 else np.stack([change(frame) for frame in target])


def stack_frames(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Stack T frames (H, W, 3) to (T, H, W, 3); a single frame is not copied."""
    return frames[0][None] if len(frames) == 1 else np.stack(frames)


def to_tensors(images: np.ndarray, targets: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Copy images, uint8 (T, H, W, 3), to "image", see `channels_first`, and targets to tensors."""
    own = {name: torch.from_numpy(np.array(target)) for name, target in targets.items()}
    return {"image": torch.from_numpy(channels_first(images)), **own}


def channels_first(images: np.ndarray) -> np.ndarray:
    """Copy images, uint8 (T, H, W, 3), to (T, 3, H, W), or (3, H, W) if T is 1."""
    planes = np.empty((len(images), 3, *images.shape[1:3]), images.dtype)
    for frame, channels in zip(images, planes, strict=True):  # three times as fast as a transposed copy
        cv2.split(frame, list(channels))
    return planes[0] if len(planes) == 1 else planes


def _place(
    array: np.ndarray, augmentation: Augmentation, resize: Callable[[np.ndarray, int, int], np.ndarray]
) -> np.ndarray:
    """Flip an array (H, W, ...), scale it to the augmentation's width, and crop or pad it to (H, W)."""
    H, W = array.shape[:2]
    if (flips := (augmentation.flip_horizontal, augmentation.flip_vertical)) in _FLIPS:
        array = cv2.flip(array, _FLIPS[flips])
    height, top, left = augmentation.place(H, W)
    scaled = resize(array, height, augmentation.width)
    cropped = scaled[top : top + H, left : left + W]
    if cropped.shape[:2] == (H, W):
        return cropped
    padded = np.zeros((H, W, *cropped.shape[2:]), dtype=cropped.dtype)
    padded[: cropped.shape[0], : cropped.shape[1]] = cropped
    return padded


@dataclass(frozen=True)
class Colours:
    """Changes of a sample's frames, in this order; the defaults change nothing."""

    blur: float = 0.0  # sigma in pixels
    hue: float = 0.0  # rotation of colours around grey, in radians
    saturation: float = 1.0  # factor; 0 is grey-scale
    gains: tuple[float, float, float] = (1.0, 1.0, 1.0)  # factor of each channel, red first
    gamma: float = 1.0
    contrast: float = 1.0  # factor around mid-grey
    brightness: float = 0.0  # added value
    veil: float = 0.0  # brightness of a veil, 0 to 1
    haze: float = 0.0  # opacity of the veil, 0 to 1
    noise: float = 0.0  # sigma in grey levels
    grain: int = 0  # place of the noise in the bank
    quality: int = 0  # of JPEG; 0: no compression


UNCHANGED = Colours()
_CHANCES = {
    "blur": 0.3, "hue": 0.5, "saturation": 0.6, "gains": 0.6, "gamma": 0.5, "contrast": 0.5,
    "brightness": 0.5, "haze": 0.2, "noise": 0.4, "quality": 0.3,
}  # fmt: skip
_GREY_CHANCE = 0.08  # for no colour at all, at strength 1


def sample_colours(generator: torch.Generator, strength: float) -> Colours:
    """Draw a sample's colour changes, each with its own probability.

    ``strength`` limits their size. 0 draws nothing; 1 draws gains 0.7 to 1.4, hue up to 90 degrees, saturation 0 to
    1.6, gamma 0.5 to 2, blur up to 1.5 pixels, noise up to 12 grey levels, and JPEG quality down to 20.
    """
    if strength == 0:
        return UNCHANGED
    happens = dict(zip(_CHANCES, torch.rand(len(_CHANCES), generator=generator).tolist(), strict=True))
    amounts = _amounts(torch.rand(15, generator=generator).tolist(), strength)
    changes = {name: amounts[name] for name, chance in _CHANCES.items() if happens[name] < chance}
    changes |= {name: amounts[name] for change, name in (("haze", "veil"), ("noise", "grain")) if change in changes}
    if amounts["grey"] < _GREY_CHANCE * strength:
        changes["saturation"] = 0.0
    return Colours(**changes)


def change_colours(images: np.ndarray, drawn: Colours) -> np.ndarray:
    """Change uint8 RGB frames (T, H, W, 3) alike; without a change, return them as they are."""
    if drawn == UNCHANGED:
        return images
    return np.stack([_change(image, drawn) for image in images])


def _amounts(u: list[float], strength: float) -> dict[str, Any]:
    """Convert uniform numbers in [0, 1) to the size of each change."""
    signed = [strength * (2 * x - 1) for x in u]
    best, worst = _JPEG_QUALITY
    return {
        "blur": 1.5 * strength * u[0],
        "hue": math.pi / 2 * signed[1],
        "saturation": 1 + signed[2] * (0.6 if signed[2] > 0 else 1.0),
        "gains": tuple(1.4**x for x in signed[3:6]),
        "gamma": 2 ** signed[6],
        "contrast": 1 + 0.5 * signed[7],
        "brightness": 0.2 * signed[8],
        "haze": 0.5 * strength * u[9],
        "veil": 0.5 + 0.5 * u[10],
        "noise": 12.0 * strength * u[11],
        "grain": int(u[14] * (_BANK_SIZE // 2)),
        "quality": round(best - (best - worst) * strength * u[12]),
        "grey": u[13],
    }


def _change(image: np.ndarray, drawn: Colours) -> np.ndarray:
    if drawn.blur > 0:
        image = cv2.GaussianBlur(image, (0, 0), drawn.blur)
    if drawn.hue or drawn.saturation != 1:
        image = cv2.transform(image, hue_matrix(drawn.hue, drawn.saturation))
    if (table := colour_table(drawn)) is not None:
        image = cv2.LUT(image, table)
    if drawn.noise > 0:
        image = cv2.addWeighted(image, 1.0, _noise(image.shape, drawn.grain), drawn.noise, 0.0, dtype=cv2.CV_8U)
    if drawn.quality:
        _, coded = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, drawn.quality))
        return np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR))
    return image


def blur_kernel(sigma: float) -> np.ndarray:
    """Return the weights (K,) of OpenCV's Gaussian blur of uint8 images along one axis; K is odd, sigma in pixels."""
    size = round(6 * sigma + 1) | 1
    return cv2.getGaussianKernel(size, sigma)[:, 0] if sigma > 0 else np.ones(1)


def hue_matrix(hue: float, saturation: float) -> np.ndarray:
    """Return the (3, 3) matrix that rotates colours around grey, scales them, and keeps the luma."""
    k = 1 / math.sqrt(3)
    cross = k * np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    about = np.cos(hue) * np.eye(3) + np.sin(hue) * cross + (1 - np.cos(hue)) * np.full((3, 3), 1 / 3)
    luma = np.tile(_LUMA, (3, 1))
    colour = about - np.tile(_LUMA @ about, (3, 1))  # a rotated colour minus its luma
    return (luma + saturation * colour).astype(np.float32)


def colour_table(drawn: Colours) -> np.ndarray | None:
    """Return gains, gamma, contrast, brightness and haze as one table (1, 256, 3); None if they change nothing."""
    points = (drawn.gains, drawn.gamma, drawn.contrast, drawn.brightness, drawn.haze)
    if points == ((1.0, 1.0, 1.0), 1.0, 1.0, 0.0, 0.0):
        return None
    values = np.arange(256, dtype=np.float64)[:, None] / 255 * np.array(drawn.gains)  # (256, 3)
    values = values.clip(0, 1) ** drawn.gamma
    values = (values - 0.5) * drawn.contrast + 0.5 + drawn.brightness
    values = values.clip(0, 1) * (1 - drawn.haze) + drawn.veil * drawn.haze
    return np.rint(values.clip(0, 1) * 255).astype(np.uint8)[None]


def _noise(shape: tuple[int, ...], start: int) -> np.ndarray:
    """Cut float32 normal noise of a shape out of the bank."""
    count, bank = math.prod(shape), noise_bank()
    start = noise_start(start, count)
    return np.resize(bank[start : start + count], count).reshape(shape)


def noise_start(start: int, count: int) -> int:
    """Return the place in the bank of `count` numbers, moved to where they fit."""
    return start if start + count <= _BANK_SIZE else start % max(_BANK_SIZE - count, 1)


@lru_cache(maxsize=1)
def noise_bank() -> np.ndarray:
    """Return normal random numbers, float32."""
    return np.random.Generator(np.random.PCG64(0)).standard_normal(_BANK_SIZE, dtype=np.float32)
