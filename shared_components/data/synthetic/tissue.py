"""Tissue behind the instruments: organs laid over each other, vessels, fat, folds, blood, gauze, thread.

A video's tissue is painted once on a canvas larger than the frame; each frame is then only a warp of it.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from shared_components.data.synthetic.looks import Look, Texture
from shared_components.data.synthetic.noise import fractal, linear, smooth, step

Array = np.ndarray

CANVAS = 1.4  # canvas size in frames: room for camera motion
NEAREST, FARTHEST = 64.0, 110.0  # range of tissue depth, mm; instruments stay in front of NEAREST


@dataclass(frozen=True)
class Tissue:
    """A painted canvas.

    Attributes:
        lit: (H, W, 3) float32 linear light reflected under a headlight of brightness 1.
        relief: (H, W, 4) float32: surface slope in x and y, depth in mm, gloss.
    """

    lit: Array
    relief: Array


@dataclass
class _Paint:
    """The canvas while it is painted: albedo (H, W, 3), height in mm (H, W) and gloss (H, W)."""

    albedo: Array
    height: Array
    gloss: Array

    def blend(self, colour: Array, cover: Array) -> None:
        self.albedo += (colour - self.albedo) * cover[..., None]


def paint(look: Look, rng: np.random.Generator, height: int, width: int) -> Tissue:
    """Paint one video's tissue for frames of (height, width)."""
    H, W = round(height * CANVAS), round(width * CANVAS)
    canvas = _background(look, rng, H, W)
    for colour, kind in look.organs[1:]:
        for _ in range(int(rng.integers(1, 3))):
            _lay_organ(canvas, look, rng, linear(colour), kind)
    _draw_vessels(canvas, look, rng)
    _spill_blood(canvas, look, rng)
    if rng.random() < look.gauze:
        _lay_gauze(canvas, rng)
    if rng.random() < look.thread:
        _draw_thread(canvas, rng)
    return _light(canvas, look, rng)


def _background(look: Look, rng: np.random.Generator, H: int, W: int) -> _Paint:
    colour, kind = look.organs[0]
    paint = _Paint(np.empty((H, W, 3), np.float32), 4.0 * fractal(rng, H, W, 3), np.ones((H, W), np.float32))
    paint.albedo[:] = linear(colour)
    _texture(paint, rng, kind, np.ones((H, W), np.float32), linear(colour), look.flat)
    return paint


def _lay_organ(paint: _Paint, look: Look, rng: np.random.Generator, colour: Array, kind: Texture) -> None:
    """Lay a dome with a noisy outline over the canvas."""
    H, W = paint.height.shape
    y, x = np.mgrid[0:H, 0:W].astype(np.float32) / np.float32(W)
    centre_x, centre_y = rng.uniform(0.0, 1.0), rng.uniform(0.0, H / W)
    angle, long, short = rng.uniform(0, np.pi), rng.uniform(0.3, 0.6), rng.uniform(0.12, 0.3)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    along = ((x - centre_x) * cos + (y - centre_y) * sin) / np.float32(long)
    across = ((y - centre_y) * cos - (x - centre_x) * sin) / np.float32(short)
    outline = 0.0 if look.flat else 0.16 * fractal(rng, H, W, 6)
    inside = 1.0 - np.sqrt(along**2 + across**2) + outline
    cover = step(inside, 0.0, 0.03)
    dome = np.sqrt(np.clip(inside, 0.0, 1.0))
    paint.height += cover * (2.0 + rng.uniform(6.0, 12.0) * dome - 0.6 * paint.height)
    paint.blend(colour * np.float32(rng.uniform(0.75, 1.15)), cover)
    _texture(paint, rng, kind, cover, colour, look.flat)


def _texture(
    paint: _Paint, rng: np.random.Generator, kind: Texture, cover: Array, colour: Array, flat: bool
) -> None:
    """Add the pattern of one kind of tissue where `cover` is 1."""
    H, W = cover.shape
    if flat:
        return
    mottle = 1.0 + 0.14 * fractal(rng, H, W, 8, octaves=4)
    bump = 0.15 * fractal(rng, H, W, 30, octaves=2)
    if kind == "lobular":
        lobule, value = _lobules(rng, H, W)
        bump += 2.4 * lobule
        mottle *= (0.72 + 0.3 * lobule) * value
    elif kind == "tubular":
        wave = smooth(rng, H, W, 3) * 1.4 + np.linspace(0, rng.uniform(4, 7), H, dtype=np.float32)[:, None]
        loop = np.abs(np.sin(wave * np.float32(np.pi / 1.6)))
        bump += 6.0 * np.sqrt(loop)
        mottle *= 0.8 + 0.25 * loop
    elif kind == "muscle":
        fibre = _fibres(rng, H, W)
        bump += 0.7 * fibre
        mottle *= 1.0 + 0.16 * fibre
    elif kind == "membrane":
        veil = step(fractal(rng, H, W, 4), 0.1, 1.6)
        paint.blend(np.sqrt(colour) * np.float32(0.8), 0.45 * veil * cover)
        ridge = 1.0 - np.abs(fractal(rng, H, W, 5, octaves=2))
        bump += 1.5 * np.clip(ridge, -0.5, 1.0)
    paint.albedo *= 1.0 + cover[..., None] * (np.clip(mottle, 0.3, 1.7)[..., None] - 1.0)
    paint.height += cover * bump


def _lobules(rng: np.random.Generator, H: int, W: int) -> tuple[Array, Array]:
    """Return rounded cells (H, W) in [0, 1] and a brightness per cell (H, W)."""
    seeds = np.full((H, W), 255, np.uint8)
    count = int(rng.integers(140, 320))
    seeds[rng.integers(0, H, count), rng.integers(0, W, count)] = 0
    distance, label = cv2.distanceTransformWithLabels(
        seeds, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )
    value = rng.uniform(0.86, 1.1, int(label.max()) + 1).astype(np.float32)[label]
    radius = 0.75 * np.sqrt(H * W / count)
    lobule = np.sqrt(np.clip(1.0 - (distance / np.float32(radius)) ** 2, 0.0, 1.0))
    wander = [np.float32(W * 0.012) * fractal(rng, H, W, 9, octaves=2) for _ in range(2)]
    y, x = np.mgrid[0:H, 0:W].astype(np.float32)
    both = cv2.remap(
        cv2.merge([lobule, value]),
        x + wander[0],
        y + wander[1],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )
    both = cv2.GaussianBlur(both, (0, 0), W * 0.003)
    return both[..., 0], both[..., 1]


def _fibres(rng: np.random.Generator, H: int, W: int) -> Array:
    """Return streaks (H, W) of about unit variance along a random, slightly bent direction."""
    strip = cv2.resize(rng.standard_normal((48, 6), dtype=np.float32), (256, 256))
    y, x = np.mgrid[0:H, 0:W].astype(np.float32) * np.float32(256.0 / W)
    angle = rng.uniform(0, np.pi)
    bend = 14.0 * smooth(rng, H, W, 3)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return cv2.remap(
        strip, x * cos + y * sin, y * cos - x * sin + bend, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )


def _draw_vessels(paint: _Paint, look: Look, rng: np.random.Generator) -> None:
    H, W = paint.height.shape
    mask = np.zeros((H, W), np.uint8)
    for _ in range(round(look.vessels * rng.integers(6, 12))):
        start = rng.uniform((0, 0), (W, H))
        _grow(mask, rng, start, rng.uniform(0, 2 * np.pi), W * rng.uniform(0.004, 0.011), W * 0.02, 3)
    cover = cv2.GaussianBlur(mask, (0, 0), W * 0.0016).astype(np.float32) / 255.0
    paint.blend(linear(look.vessel), 0.72 * cover)
    paint.height += 0.35 * cover


def _grow(
    mask: Array, rng: np.random.Generator, start: Array, angle: float, wide: float, stride: float, forks: int
) -> None:
    """Draw a wandering vessel into `mask`, thinning towards its end, with side branches."""
    count = int(rng.integers(10, 26))
    angles = angle + np.cumsum(rng.normal(0, 0.28, count))
    points = start + np.cumsum(np.stack([np.cos(angles), np.sin(angles)], 1), 0) * stride
    for i in range(count - 1):
        thick = max(1, round(wide * (1.0 - 0.7 * i / count)))
        ends = [tuple(int(v * 16) for v in point) for point in (points[i], points[i + 1])]
        cv2.line(mask, ends[0], ends[1], 255, thick, cv2.LINE_AA, 4)
    for _ in range(forks):
        i = int(rng.integers(2, count))
        turn = rng.choice((-1.0, 1.0)) * rng.uniform(0.4, 1.1)
        _grow(mask, rng, points[i], angles[i] + turn, wide * 0.55, stride * 0.7, forks - 2)


def _spill_blood(paint: _Paint, look: Look, rng: np.random.Generator) -> None:
    """Pool blood in the hollows: dark, smooth and glossy."""
    H, W = paint.height.shape
    if look.blood <= 0.0:
        return
    level = fractal(rng, H, W, 4) - 0.12 * (paint.height - paint.height.mean())
    edge = float(np.quantile(level[::4, ::4], 1.0 - 0.7 * look.blood))
    cover = step(level, edge - 0.1, edge + 0.35) * np.float32(0.85)
    paint.blend(linear((128, 10, 12)), cover)
    paint.gloss += 1.2 * cover
    paint.height += cover * (cv2.GaussianBlur(paint.height, (0, 0), W * 0.01) - paint.height)


def _lay_gauze(paint: _Paint, rng: np.random.Generator) -> None:
    """Lay a woven white-grey swab, partly soaked, with no gloss: as bright and as grey as an instrument."""
    H, W = paint.height.shape
    y, x = np.mgrid[0:H, 0:W].astype(np.float32) / np.float32(W)
    angle, centre = rng.uniform(0, np.pi), rng.uniform((0.15, 0.1), (0.85, 0.7))
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    bend = 0.02 * fractal(rng, H, W, 5)
    u = (x - centre[0]) * cos + (y - centre[1]) * sin + bend
    v = (y - centre[1]) * cos - (x - centre[0]) * sin + bend
    inside = np.minimum(rng.uniform(0.12, 0.24) - np.abs(u), rng.uniform(0.04, 0.1) - np.abs(v))
    cover = step(inside, 0.0, 0.008)
    weave = 0.84 + 0.1 * np.sin(u * 420) * np.sin(v * 420) + 0.06 * fractal(rng, H, W, 20)
    soak = step(fractal(rng, H, W, 5), 0.2, 1.2)[..., None]
    grey = linear((206, 204, 200)) * weave[..., None]
    paint.albedo += cover[..., None] * (grey * (1 - 0.8 * soak * (1 - linear((190, 60, 56)))) - paint.albedo)
    paint.height += cover * (2.0 + 0.6 * fractal(rng, H, W, 10))
    paint.gloss *= 1.0 - cover


def _draw_thread(paint: _Paint, rng: np.random.Generator) -> None:
    H, W = paint.height.shape
    time = np.linspace(0, 1, 40)
    ends = rng.uniform((0.1, 0.1), (0.9, 0.9), (4, 2))
    weights = np.stack([(1 - time) ** 3, 3 * time * (1 - time) ** 2, 3 * time**2 * (1 - time), time**3], 1)
    points = np.round(weights @ ends * (W, H) * 16).astype(np.int32)
    mask = np.zeros((H, W), np.uint8)
    cv2.polylines(mask, [points], False, 255, max(1, round(W * 0.0035)), cv2.LINE_AA, 4)
    cover = mask.astype(np.float32) / 255.0
    colour = ((120, 90, 190), (220, 220, 215), (40, 60, 150))[int(rng.integers(3))]
    paint.blend(linear(colour), cover)
    paint.height += 0.8 * cover


def _light(paint: _Paint, look: Look, rng: np.random.Generator) -> Tissue:
    """Shade the canvas under a headlight; hollows between organs are darker."""
    H, W = paint.height.shape
    tilt = rng.uniform(-8, 8, 2)
    plane = np.linspace(-tilt[0], tilt[0], W)[None] + np.linspace(-tilt[1], tilt[1], H)[:, None]
    raised = paint.height - paint.height.mean()
    depth = np.clip(82.0 + plane.astype(np.float32) - raised, NEAREST, FARTHEST).astype(np.float32)
    fine = paint.height if look.flat else paint.height + 0.1 * fractal(rng, H, W, 60, octaves=2)
    pixels_per_mm = 0.85 * W / CANVAS / 80.0
    slope_x = cv2.Sobel(fine, cv2.CV_32F, 1, 0, scale=pixels_per_mm / 8)
    slope_y = cv2.Sobel(fine, cv2.CV_32F, 0, 1, scale=pixels_per_mm / 8)
    facing = 1.0 / np.sqrt(1.0 + slope_x**2 + slope_y**2)
    hollow = cv2.GaussianBlur(raised, (0, 0), W * 0.03) - raised
    shade = (0.25 + 0.75 * facing) * np.clip(1.0 - 0.10 * hollow, 0.35, 1.25)
    lit = np.clip(paint.albedo, 0.0, 1.0) * shade[..., None].astype(np.float32)
    return Tissue(lit.astype(np.float32), cv2.merge([slope_x, slope_y, depth, paint.gloss]))
