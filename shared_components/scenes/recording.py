"""Effects between optics and file: aperture, distortion, fibres, compression, and the recorder's overlays.

Wide-angle distortion moves image and labels. Text covers the image, but not the labels. Borders and inset pictures also
remove labels.
"""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.random import Generator

from shared_components.scenes.look import Look

Array = np.ndarray
Maps = tuple[Array, Array]


def mesh(look: Look, height: int, width: int) -> Array | None:
    """Return the gain, uint8 (H, W, 3), of a honeycomb of bright fibres; None without fibres."""
    if look.fibres <= 0:
        return None
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    step = 2 * np.pi * look.fibres / width
    waves = sum(np.cos(step * (x * np.cos(a) + y * np.sin(a))) for a in (0.3, 0.3 + np.pi / 3, 0.3 + 2 * np.pi / 3))
    gain = 0.4 + 0.6 * np.clip(0.5 + np.asarray(waves) / 3.0, 0.0, 1.0)
    return cv2.merge([(255.0 * gain).astype(np.uint8)] * 3)


def compressed(picture: Array, quality: int) -> Array:
    """Compress an RGB picture as JPEG of this quality, and decode it."""
    code = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    decoded = cv2.imdecode(code, cv2.IMREAD_COLOR)
    assert decoded is not None
    return np.ascontiguousarray(decoded[..., ::-1])


def aperture(look: Look, rng: Generator, height: int, width: int) -> Array | None:
    """Return the visible field, uint8 (H, W); None if the whole frame is visible."""
    if look.aperture == "full":
        return None
    field = np.zeros((height, width), np.uint8)
    if look.aperture == "octagon":
        cv2.fillPoly(field, [np.round(_octagon(rng, height, width) * 16).astype(np.int32)], 1, shift=4)
        return field
    share = rng.uniform(*(look.field or ((0.50, 0.54) if look.aperture == "circle" else (0.56, 0.6))))
    centre = (rng.uniform(0.48, 0.52) * width, rng.uniform(0.48, 0.52) * height)
    longer = max(height, width)
    cv2.circle(field, (round(centre[0] * 16), round(centre[1] * 16)), round(share * longer * 16), 1, -1, shift=4)
    return field


def _octagon(rng: Generator, height: int, width: int) -> Array:
    """Return the corners (8, 2) of a rectangle with cut corners, as on a flexible endoscope's processor."""
    half = np.array([min(0.5 * width, rng.uniform(0.52, 0.66) * height), rng.uniform(0.46, 0.5) * height])
    middle = np.array([rng.uniform(half[0], width - half[0]), 0.5 * height])
    cut = rng.uniform(0.08, 0.3) * height
    corners = []
    for x, y in ((1, 1), (-1, 1), (-1, -1), (1, -1)):
        along, down = (half[0] * x - cut * x, half[1] * y), (half[0] * x, half[1] * y - cut * y)
        corners += [along, down] if x * y < 0 else [down, along]
    return middle + np.array(corners)


def distortion(look: Look, height: int, width: int) -> Maps | None:
    """Return the source x and y (H, W) of each pixel for barrel distortion; None without distortion.

    A pixel at radius r (1: a corner) comes from r (1 + k r^2) / (1 + k), so that corners stay.
    """
    if look.barrel <= 0.0:
        return None
    x = np.tile(np.arange(width, dtype=np.float32) - np.float32(width / 2), (height, 1))
    y = np.tile((np.arange(height, dtype=np.float32) - np.float32(height / 2))[:, None], (1, width))
    square = (x * x + y * y) * np.float32(4.0 / (height**2 + width**2))
    factor = (1 + np.float32(look.barrel) * square) / np.float32(1 + look.barrel)
    return x * factor + np.float32(width / 2), y * factor + np.float32(height / 2)


def distorted(picture: Array, maps: Maps, *, exact: bool = False) -> Array:
    """Distort a picture (H, W, ...) by the maps of `distortion`; `exact` keeps the values, for labels."""
    return cv2.remap(picture, *maps, cv2.INTER_NEAREST if exact else cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


class Overlay:
    """A recorder's drawing over every frame of a video.

    `cover` (H, W) is 0 outside the drawing, 1 for writing, and 2 for panels, which also remove labels.
    """

    def __init__(self, look: Look, rng: Generator, height: int, width: int) -> None:
        self.ink = np.zeros((height, width, 3), np.uint8)
        self.cover = np.zeros((height, width), np.uint8)
        for name in look.recorder:
            _DRAW[name](self, rng)
        self.places = np.flatnonzero(self.cover)
        self.colours = self.ink.reshape(-1, 3)[self.places]
        self.bare = (self.cover < 2).astype(np.uint8)
        self.hides = bool((self.cover == 2).any())

    def draw(self, picture: Array) -> None:
        """Draw on a picture (H, W, 3) uint8 in place."""
        picture.reshape(-1, 3)[self.places] = self.colours

    def panel(self, x: float, y: float, wide: float, high: float, colour: tuple[int, ...]) -> None:
        """Replace a rectangle, given in shares of the frame."""
        H, W = self.cover.shape
        region = np.s_[round(y * H) : round((y + high) * H), round(x * W) : round((x + wide) * W)]
        self.ink[region], self.cover[region] = colour, 2

    def write(self, text: str, x: float, y: float, high: float, colour: tuple[int, ...]) -> None:
        """Write a line whose baseline begins at (x, y), `high` tall; all in shares of the frame."""
        H, W = self.cover.shape
        drawn = np.zeros((H, W), np.uint8)
        place = round(x * W), round(y * H)
        cv2.putText(drawn, text, place, cv2.FONT_HERSHEY_SIMPLEX, high * H / 22.0, 255, max(1, round(high * H / 14)))
        self.ink[drawn > 0] = colour
        self.cover[(drawn > 0) & (self.cover == 0)] = 1


_INKS = ((255, 255, 255), (230, 230, 230), (250, 230, 80), (120, 220, 120), (20, 20, 20), (90, 200, 240))


def _ink(rng: Generator) -> tuple[int, ...]:
    return _INKS[int(rng.integers(len(_INKS)))]


def _line(rng: Generator) -> str:
    """Draw a recorder's line: a date, a time, a setting, or letters."""
    n = rng.integers(0, 60, 6)
    lines = (
        f"{n[0] % 28 + 1:02d}/{n[1] % 12 + 1:02d}/20{n[2] % 30:02d}", f"{n[3] % 24:02d}:{n[4]:02d}:{n[5]:02d}",
        f"Ct:{n[0] % 5} Eh:A{n[1] % 9}", f"ID {n[2]:02d}{n[3]:02d}{n[4]:02d}", "".join(chr(65 + v % 26) for v in n),
    )  # fmt: skip
    return lines[int(rng.integers(len(lines)))]


def _text(overlay: Overlay, rng: Generator) -> None:
    """Write lines in one or two corners."""
    for _ in range(int(rng.integers(1, 3))):
        high, colour = rng.uniform(0.018, 0.045), _ink(rng)
        x, top = rng.choice((0.015, 0.72)), rng.choice((0.05, 0.78))
        for number in range(int(rng.integers(1, 5))):
            overlay.write(_line(rng), x, top + 1.5 * high * number, high, colour)


def _border(overlay: Overlay, rng: Generator) -> None:
    """Draw black, grey or bluish bars at the sides, above and below, or all around."""
    colour = ((0, 0, 0), (0, 0, 0), (28, 28, 30), (30, 40, 60))[int(rng.integers(4))]
    wide, high = rng.uniform(0.01, 0.14, 2) * ((1, 0), (0, 1), (0.4, 0.4))[int(rng.integers(3))]
    left, above = rng.uniform(0.3, 0.7) * wide, rng.uniform(0.3, 0.7) * high
    if wide:
        overlay.panel(0.0, 0.0, left, 1.0, colour)
        overlay.panel(1.0 - wide + left, 0.0, wide - left, 1.0, colour)
    if high:
        overlay.panel(0.0, 0.0, 1.0, above, colour)
        overlay.panel(0.0, 1.0 - high + above, 1.0, high - above, colour)


def _inset(overlay: Overlay, rng: Generator) -> None:
    """Draw a small framed picture in a corner, such as a scan or the shape of the endoscope."""
    wide = rng.uniform(0.14, 0.3)
    high, edge = wide * rng.uniform(0.7, 1.2), 0.006
    x, y = rng.choice((0.01, 0.99 - wide)), rng.choice((0.01, 0.99 - high))
    overlay.panel(x - edge, y - edge, wide + 2 * edge, high + 2 * edge, tuple(rng.integers(60, 255, 3).tolist()))
    overlay.panel(x, y, wide, high, tuple(rng.integers(0, 120, 3).tolist()))
    H, W = overlay.cover.shape
    points = rng.uniform((x + 0.1 * wide, y + 0.1 * high), (x + 0.9 * wide, y + 0.9 * high), (6, 2)) * (W, H)
    colour = tuple(rng.integers(90, 255, 3).tolist())
    thickness = max(1, round(0.006 * W))
    cv2.polylines(overlay.ink, [np.round(points).astype(np.int32)], False, colour, thickness, cv2.LINE_AA)


def _column(overlay: Overlay, rng: Generator) -> None:
    """Write the left column of a flexible endoscope's processor: lines of settings on black."""
    high = rng.uniform(0.018, 0.035)
    for number in range(int(rng.integers(3, 9))):
        overlay.write(_line(rng), 0.01, 0.1 + 0.09 * number + rng.uniform(0, 0.03), high, _ink(rng))


def _mark(overlay: Overlay, rng: Generator) -> None:
    """Draw a maker's sign in a corner: a filled box and a word."""
    x, y = rng.choice((0.02, 0.8)), rng.choice((0.02, 0.9))
    size = rng.uniform(0.02, 0.06)
    overlay.panel(x, y, size, size, tuple(rng.integers(0, 255, 3).tolist()))
    overlay.write(_line(rng), x + 1.3 * size, y + size, size, _ink(rng))


_DRAW: dict[str, Callable[[Overlay, Generator], None]] = {
    "border": _border, "text": _text, "inset": _inset, "column": _column, "mark": _mark,
}  # fmt: skip
OVERLAYS = tuple(_DRAW)
