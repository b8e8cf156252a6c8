"""Draw mixing weights of many sites as small images, because thousands of SVG cells would be slow and illegible."""

import base64
from collections.abc import Sequence

import cv2
import numpy as np

from shared_components.reporting.axes import svg, text_at

_SIDE = 320  # approximate width and height in pixels
_LEFT, _TOP = 30, 42
_MORE, _LESS = (0x3D, 0x94, 0xD6), (0xE8, 0x83, 0x4A)  # RGB of the style's light mode; transparency suits dark mode
_LARGEST_STEP = 50  # sites between two numbers along an axis


def heat_image(weights: np.ndarray, *, title: str, spread: float, full: float = 0.8) -> str:
    """Draw a matrix (K, K) of mixing weights; row i is for receiving site i, NaN is an empty pixel.

    The opacity is the distance of a weight from 1 / K, and `full` at the distance `spread`. Sites are numbered from 1.
    """
    (count, _), known = weights.shape, np.isfinite(weights)
    away = np.clip((np.where(known, weights, 1 / count) - 1 / count) / spread, -1, 1)
    colours = np.where(away[..., None] > 0, _MORE[::-1], _LESS[::-1])  # (K, K, 3) in BGR
    pixels = np.concatenate([colours, np.rint(255 * full * np.abs(away))[..., None]], axis=-1).astype(np.uint8)
    side = count * max(1, round(_SIDE / count))
    box = f'x="{_LEFT}" y="{_TOP}" width="{side}" height="{side}"'
    picture = f'<image {box} href="{_png(pixels)}" preserveAspectRatio="none" style="image-rendering: pixelated"/>'
    body = [picture, f'<rect {box} fill="none" stroke="var(--grid)"/>']
    for number in _numbers(count):
        middle = (number - 0.5) * side / count
        body.append(text_at(_LEFT - 6, _TOP + middle + 4, str(number), anchor="end"))
        body.append(text_at(_LEFT + middle, _TOP - 6, str(number), anchor="middle"))
    return svg(_LEFT + side + 10, _TOP + side + 6, title, body, kind="whole")


def _numbers(count: int) -> Sequence[int]:
    step = next((n for n in (10, 20) if count / n <= 10), _LARGEST_STEP)
    return [1, *range(step, count + 1, step)]


def _png(pixels: np.ndarray) -> str:
    _, data = cv2.imencode(".png", pixels)
    return "data:image/png;base64," + base64.b64encode(data.tobytes()).decode("ascii")
