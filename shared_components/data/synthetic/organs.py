"""Organs: domes with noisy outlines and the patterns of five kinds of tissue."""

import cv2
import numpy as np

from shared_components.data.synthetic.canvas import Canvas
from shared_components.data.synthetic.look import Texture
from shared_components.data.synthetic.noise import fractal, smooth, step

Array = np.ndarray


def lay_background(canvas: Canvas, rng: np.random.Generator, colour: Array, kind: Texture) -> None:
    """Cover the whole canvas with one kind of tissue of `colour` (3,)."""
    canvas.albedo *= colour
    _pattern(canvas, rng, kind, np.ones(canvas.shape, np.float32), colour)


def lay_organ(canvas: Canvas, rng: np.random.Generator, colour: Array, kind: Texture) -> None:
    """Lay a dome of `colour` (3,) with a noisy outline over a part of the canvas."""
    H, W = canvas.shape
    along, across = canvas.turned(rng)
    radius = cv2.magnitude(along / rng.uniform(0.3, 0.6), across / rng.uniform(0.12, 0.3))
    inside = 1.0 - radius
    if canvas.detail:
        inside += 0.16 * fractal(rng, H, W, 6)
    cover = step(inside, 0.0, 0.03)
    dome = np.sqrt(np.clip(inside, 0.0, 1.0))
    canvas.height += cover * (2.0 + rng.uniform(6.0, 12.0) * dome - 0.6 * canvas.height)
    canvas.blend(colour * np.float32(rng.uniform(0.75, 1.15)), cover)
    _pattern(canvas, rng, kind, cover, colour)


def _pattern(canvas: Canvas, rng: np.random.Generator, kind: Texture, cover: Array, colour: Array) -> None:
    """Add the pattern of one kind of tissue where `cover` (H, W) is 1."""
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
        veil = step(fractal(rng, H, W, 4), 0.1, 1.6)
        canvas.blend(np.sqrt(colour) * np.float32(0.8), 0.45 * veil * cover)
        ridge = 1.0 - np.abs(fractal(rng, H, W, 5, octaves=2))
        bump = bump + 1.5 * np.clip(ridge, -0.5, 1.0)
    canvas.scale(1.0 + cover * (np.clip(gain, 0.3, 1.7) - 1.0))
    canvas.height += cover * bump


def _lobules(canvas: Canvas, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return rounded cells (H, W) in [0, 1] and a brightness per cell (H, W)."""
    H, W = canvas.shape
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
    both = cv2.remap(
        cv2.merge([lobule, value]),
        canvas.x * W + wander[0],
        canvas.y * W + wander[1],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )
    both = cv2.GaussianBlur(both, (0, 0), W * 0.003)
    return both[..., 0], both[..., 1]


def _fibres(canvas: Canvas, rng: np.random.Generator) -> Array:
    """Return streaks (H, W) of about unit variance along a random, slightly bent direction."""
    strip = cv2.resize(rng.standard_normal((48, 6), dtype=np.float32), (256, 256))
    along, across = canvas.turned(rng)
    bend = 14.0 * smooth(rng, *canvas.shape, 3)
    along, across = along * 256 + 128, across * 256 + 128 + bend
    return cv2.remap(strip, along, across, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
