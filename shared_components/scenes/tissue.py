"""Tissue behind the instruments: organs (domes with noisy outlines), vessels, blood, gauze and thread.

A video's tissue is painted once on a canvas larger than the frame; each frame is a warp of the canvas.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.random import Generator

from shared_components.scenes.look import Look, Texture
from shared_components.scenes.noise import fractal, linear, smooth, step

Array = np.ndarray


class Canvas:
    """Albedo (H, W, 3), height in mm (H, W) and dullness (H, W; 1 means no highlights), all float32.

    `x` and `y` are pixel coordinates in canvas widths. With `detail`, `mottle` (a gain around 1) and `bump` (mm) are
    the fine texture of all tissue.
    """

    def __init__(self, rng: Generator, height: int, width: int, *, detail: bool) -> None:
        self.shape = (height, width)
        self.x = np.tile(np.arange(width, dtype=np.float32) / np.float32(width), (height, 1))
        self.y = np.tile(np.arange(height, dtype=np.float32)[:, None] / np.float32(width), (1, width))
        self.albedo = np.ones((height, width, 3), np.float32)
        self.height = 4.0 * fractal(rng, height, width, 3)
        self.dull = np.zeros(self.shape, np.float32)
        self._scratch = (np.empty_like(self.albedo), np.empty_like(self.albedo))  # new memory is slow
        self.detail = detail
        if detail:
            self.mottle = 1.0 + 0.14 * fractal(rng, height, width, 8, octaves=4)
            self.bump = 0.15 * fractal(rng, height, width, 30, octaves=2)

    def blend(self, colour: Array, cover: Array) -> None:
        """Mix a colour, (3,) or (H, W, 3) linear light, into the albedo by `cover` (H, W) in [0, 1]."""
        change, share = self._scratch
        np.subtract(colour.astype(np.float32, copy=False), self.albedo, out=change)
        cv2.merge([cover.astype(np.float32, copy=False)] * 3, share)
        change *= share
        self.albedo += change

    def fractal(self, rng: Generator, cells: float, *, octaves: int = 3) -> Array:
        """Return a random field (H, W); see `noise.fractal`."""
        return fractal(rng, *self.shape, cells, octaves=octaves)

    def scale(self, gain: Array) -> None:
        """Multiply the albedo by `gain` (H, W)."""
        self.albedo *= cv2.merge([gain.astype(np.float32, copy=False)] * 3)

    def turned(self, rng: Generator) -> tuple[Array, Array]:
        """Return coordinates (H, W) along and across a random direction, from a random centre."""
        H, W = self.shape
        x, y = self.x - rng.uniform(0.0, 1.0), self.y - rng.uniform(0.0, H / W)
        angle = rng.uniform(0.0, np.pi)
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        return x * cos + y * sin, y * cos - x * sin


def rod_profile(canvas: Canvas, points: Array, width: float) -> tuple[Array, Array]:
    """Return cover and height profile (H, W) in [0, 1] of a rod along points (N, 2); lengths in canvas widths."""
    W = canvas.shape[1]
    thickness = max(2, round(width * W))
    mask = np.zeros(canvas.shape, np.uint8)
    cv2.polylines(mask, [np.round(points * W * 16).astype(np.int32)], False, 255, thickness, cv2.LINE_8, 4)
    inside = cv2.distanceTransform(mask, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) / np.float32(thickness / 2)
    return step(inside, 0.0, 2.0 / thickness), np.sqrt(np.clip(1.0 - (1.0 - inside.clip(0, 1)) ** 2, 0.0, 1.0))


def lay_background(canvas: Canvas, rng: Generator, colour: Array, kind: Texture) -> None:
    """Cover the whole canvas with a tissue of `colour` (3,)."""
    canvas.albedo *= colour
    _pattern(canvas, rng, kind, np.ones(canvas.shape, np.float32), colour)


def lay_organ(
    canvas: Canvas, rng: Generator, colour: Array, kind: Texture, radius: Array | None = None, *, rough: float = 0.16
) -> Array:
    """Lay a dome of `colour` (3,) with an outline of noise `rough`, and return its cover (H, W).

    `radius` (H, W) is 0 in its middle and 1 at its outline; by default it is a random ellipse.
    """
    if radius is None:
        along, across = canvas.turned(rng)
        radius = cv2.magnitude(along / rng.uniform(0.3, 0.6), across / rng.uniform(0.12, 0.3))
    inside = 1.0 - radius
    if canvas.detail:
        inside += rough * canvas.fractal(rng, 6)
    cover = step(inside, 0.0, 0.03)
    canvas.height += cover * (2.0 + rng.uniform(6.0, 12.0) * np.sqrt(np.clip(inside, 0.0, 1.0)) - 0.6 * canvas.height)
    canvas.blend(colour * np.float32(rng.uniform(0.75, 1.15)), cover)
    _pattern(canvas, rng, kind, cover, colour)
    return cover


def _pattern(canvas: Canvas, rng: Generator, kind: Texture, cover: Array, colour: Array) -> None:
    """Add the texture of a tissue to the pixels that `cover` (H, W) covers."""
    if not canvas.detail:
        return
    H, W = canvas.shape
    gain, bump = canvas.mottle, canvas.bump
    if kind == "lobular":
        lobule, value = _lobules(canvas, rng)
        bump = bump + 2.4 * lobule
        gain = gain * (0.72 + 0.3 * lobule) * value
    elif kind == "tubular":
        wave = 1.4 * smooth(rng, H, W, 3) + np.float32(rng.uniform(4, 7) * W / H) * canvas.y
        loop = np.abs(np.sin(wave * np.float32(np.pi / 1.6)))
        bump = bump + 6.0 * np.sqrt(loop)
        gain = gain * (0.8 + 0.25 * loop)
    elif kind == "muscle":
        fibre = _fibres(canvas, rng)
        bump = bump + 0.7 * fibre
        gain = gain * (1.0 + 0.16 * fibre)
    elif kind == "membrane":
        canvas.blend(np.sqrt(colour) * np.float32(0.8), 0.45 * step(canvas.fractal(rng, 4), 0.1, 1.6) * cover)
        bump = bump + 1.5 * np.clip(1.0 - np.abs(canvas.fractal(rng, 5, octaves=2)), -0.5, 1.0)
    canvas.scale(1.0 + cover * (np.clip(gain, 0.3, 1.7) - 1.0))
    canvas.height += cover * bump


def _lobules(canvas: Canvas, rng: Generator) -> tuple[Array, Array]:
    """Return rounded cells (H, W) in [0, 1] and a brightness per cell (H, W)."""
    H, W = canvas.shape
    seeds = np.full((H, W), 255, np.uint8)
    count = int(rng.integers(140, 320))
    seeds[rng.integers(0, H, count), rng.integers(0, W, count)] = 0
    per_seed = cv2.DIST_LABEL_PIXEL
    distance, label = cv2.distanceTransformWithLabels(seeds, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=per_seed)
    value = rng.uniform(0.86, 1.1, int(label.max()) + 1).astype(np.float32)[label]
    radius = 0.75 * np.sqrt(H * W / count)
    lobule = np.sqrt(np.clip(1.0 - (distance / np.float32(radius)) ** 2, 0.0, 1.0))
    x, y = (xy * W + np.float32(W * 0.012) * canvas.fractal(rng, 9, octaves=2) for xy in (canvas.x, canvas.y))
    both = cv2.remap(cv2.merge([lobule, value]), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    both = cv2.GaussianBlur(both, (0, 0), W * 0.003)
    return both[..., 0], both[..., 1]


def _fibres(canvas: Canvas, rng: Generator) -> Array:
    """Return streaks (H, W) of about unit variance along a random, slightly bent direction."""
    strip = cv2.resize(rng.standard_normal((48, 6), dtype=np.float32), (256, 256))
    along, across = canvas.turned(rng)
    along, across = along * 256 + 128, across * 256 + 128 + 14.0 * smooth(rng, *canvas.shape, 3)
    return cv2.remap(strip, along, across, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)


def draw_vessels(canvas: Canvas, look: Look, rng: Generator) -> None:
    """Draw branching vessels that shine through and slightly raise the surface."""
    H, W = canvas.shape
    mask = np.zeros((H, W), np.uint8)
    for _ in range(round(look.vessels * rng.integers(6, 12))):
        start, angle = rng.uniform((0, 0), (W, H)), rng.uniform(0, 2 * np.pi)
        _grow(mask, rng, start, angle, wide=W * rng.uniform(0.004, 0.011), stride=W * 0.02, forks=3)
    cover = cv2.GaussianBlur(mask, (0, 0), W * 0.0016).astype(np.float32) / 255.0
    canvas.blend(linear(look.vessel), 0.72 * cover)
    canvas.height += 0.35 * cover


def _grow(mask: Array, rng: Generator, start: Array, angle: float, *, wide: float, stride: float, forks: int) -> None:
    """Draw a wandering vessel into `mask`, thin at its ends, with side branches."""
    count = int(rng.integers(10, 26))
    angles = angle + np.cumsum(rng.normal(0, 0.17, count))
    points = start + np.cumsum(np.stack([np.cos(angles), np.sin(angles)], 1), 0) * stride
    pixels = np.round(points * 16).astype(np.int32)
    # one line through all points, and thicker ones through ever shorter middle parts
    for level in range(1, max(1, round(wide)) + 1):
        margin = round((level - 1) / wide * count / 2)
        if count - 2 * margin >= 2:
            cv2.polylines(mask, [pixels[margin : count - margin]], False, 255, level, cv2.LINE_AA, 4)
    for _ in range(forks):
        i = int(rng.integers(2, count))
        turn = rng.choice((-1.0, 1.0)) * rng.uniform(0.4, 1.1)
        _grow(mask, rng, points[i], angles[i] + turn, wide=wide * 0.55, stride=stride * 0.7, forks=forks - 2)


def spill_blood(canvas: Canvas, look: Look, rng: Generator) -> None:
    """Pool blood in the hollows: dark and smooth."""
    if look.blood <= 0.0:
        return
    level = canvas.fractal(rng, 4) - 0.12 * (canvas.height - canvas.height.mean())
    edge = float(np.quantile(level[::4, ::4], 1.0 - 0.7 * look.blood))
    cover = 0.85 * step(level, edge - 0.1, edge + 0.35)
    canvas.blend(linear((128, 10, 12)), cover)
    canvas.height += cover * (cv2.blur(canvas.height, (canvas.shape[1] // 30,) * 2) - canvas.height)


Lay = Callable[[Canvas, Array], Array]
"""Function that lays objects: (canvas, cover of a thread) -> uint8 (H, W): 0, or the number of an object."""
Ground = Callable[[Canvas, Look, Generator], Array]
"""Function that covers a canvas: (canvas, look, random stream) -> cover of a thread (H, W)."""

CANVAS = 1.3  # canvas size in frames: room for camera motion
NEAREST, FARTHEST = 64.0, 110.0  # range of tissue depth in mm; instruments are nearer


@dataclass(frozen=True)
class Tissue:
    lit: Array  # float32 (H, W, 3): linear light reflected under a headlight of brightness 1
    relief: Array  # float32 (H, W, 3): slopes in x and y (far off without glints), depth in mm
    things: Array | None = None  # uint8 (H, W) from `lay`; None without it


def paint(
    look: Look, rng: Generator, detail: Generator, size: tuple[int, int], lay: Lay | None, ground: Ground
) -> Tissue:
    """Paint a video's tissue for frames of `size` (height, width): ground, then objects by `lay`.

    The finest texture has its own random stream `detail`.
    """
    canvas = Canvas(rng, *(round(pixels * CANVAS) for pixels in size), detail=not look.flat)
    thread = ground(canvas, look, rng)
    things = None if lay is None else lay(canvas, thread)
    return replace(_light(canvas, look, rng, detail), things=things)


def _light(canvas: Canvas, look: Look, rng: Generator, detail: Generator) -> Tissue:
    """Shade the canvas under a headlight; hollows between organs are darker."""
    H, W = canvas.shape
    tilt = rng.uniform(-8, 8, 2)
    plane = np.linspace(-tilt[0], tilt[0], W)[None] + np.linspace(-tilt[1], tilt[1], H)[:, None]
    raised = canvas.height - canvas.height.mean()
    depth = np.clip(82.0 + plane.astype(np.float32) - raised, NEAREST, FARTHEST).astype(np.float32)
    smoothed = cv2.GaussianBlur(canvas.height, (0, 0), W * 0.005)
    slope_x, slope_y = _slopes(smoothed, W)
    facing = 1.0 / np.sqrt(1.0 + slope_x**2 + slope_y**2)
    hollow = cv2.GaussianBlur(smoothed, (0, 0), W * 0.035) - smoothed
    shade = (0.22 + 0.78 * facing) * np.clip(1.0 - 0.11 * hollow, 0.35, 1.3)
    if canvas.detail:
        film = canvas.height + 0.1 * canvas.fractal(rng, 60, octaves=2)  # round ripples: highlights without corners
        slope_x, slope_y = _slopes(cv2.GaussianBlur(film, (0, 0), max(0.7, 0.0028 * W)), W)
        canvas.scale(_finest(canvas, look, detail))
    canvas.scale(shade)
    if look.cavity > 0.0:
        canvas.scale(1.0 - np.float32(look.cavity) * step(canvas.fractal(detail, 2.5), -0.3, 0.9))
    return Tissue(np.clip(canvas.albedo, 0.0, 1.3), cv2.merge([slope_x + 8.0 * canvas.dull, slope_y, depth]))


def _finest(canvas: Canvas, look: Look, rng: Generator) -> Array:
    """Return the gain (H, W) of the finest texture: pores, and dark, thin, winding capillaries."""
    H, W = canvas.shape
    pores = canvas.fractal(rng, 90, octaves=3)
    ridge = np.abs(canvas.fractal(rng, 22, octaves=3))
    patchy = np.clip(0.5 + 0.6 * smooth(rng, H, W, 4), 0.0, 1.0)
    capillaries = np.exp(-((ridge / np.float32(0.11)) ** 2)) * patchy
    return np.clip(1.0 + np.float32(look.fine) * (0.05 * pores - 0.16 * capillaries), 0.5, 1.4)


def _slopes(height: Array, W: int) -> tuple[Array, Array]:
    """Return the slope (mm per mm) of a height map along x and y."""
    scale = 0.85 * W / CANVAS / 80.0 / 8  # pixels per mm, divided by the sum of Sobel's weights
    return cv2.Sobel(height, cv2.CV_32F, 1, 0, scale=scale), cv2.Sobel(height, cv2.CV_32F, 0, 1, scale=scale)
