"""Change the colours and the sharpness of frames, so that a network cannot lean on one camera's alone.

As in `transforms`, an example is sampled first, from an explicit generator, and applied afterwards by a pure
function: all frames of a sample alike. At strength 0 nothing is drawn and no pixel changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import torch

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
