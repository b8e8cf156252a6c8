"""Tissue behind the instruments: organs laid over each other, vessels, fat, folds, blood, gauze, thread.

A video's tissue is painted once on a canvas larger than the frame; each frame is then only a warp of it.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from shared_components.data.synthetic.canvas import Canvas
from shared_components.data.synthetic.clutter import draw_thread, draw_vessels, lay_gauze, spill_blood
from shared_components.data.synthetic.look import Look
from shared_components.data.synthetic.noise import fractal, linear, smooth, step
from shared_components.data.synthetic.organs import lay_background, lay_organ

Array = np.ndarray

CANVAS = 1.3  # canvas size in frames: room for camera motion
NEAREST, FARTHEST = 64.0, 110.0  # range of tissue depth, mm; instruments stay in front of NEAREST


@dataclass(frozen=True)
class Tissue:
    """A painted canvas.

    Attributes:
        lit: (H, W, 3) float32 linear light reflected under a headlight of brightness 1.
        relief: (H, W, 3) float32: surface slope in x and y (far off where nothing glints), depth in mm.
    """

    lit: Array
    relief: Array


def paint(look: Look, rng: np.random.Generator, detail: np.random.Generator, height: int, width: int) -> Tissue:
    """Paint one video's tissue for frames of (height, width); its finest texture is drawn from `detail`."""
    canvas = Canvas(rng, round(height * CANVAS), round(width * CANVAS), detail=not look.flat)
    (colour, kind), *organs = look.organs
    lay_background(canvas, rng, linear(colour), kind)
    for colour, kind in organs:
        for _ in range(int(rng.integers(1, 3))):
            lay_organ(canvas, rng, linear(colour), kind)
    draw_vessels(canvas, look, rng)
    spill_blood(canvas, look, rng)
    if rng.random() < look.gauze:
        lay_gauze(canvas, rng)
    if rng.random() < look.thread:
        draw_thread(canvas, rng)
    return _light(canvas, look, rng, detail)


def _light(canvas: Canvas, look: Look, rng: np.random.Generator, detail: np.random.Generator) -> Tissue:
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
        slope_x, slope_y = _wet(canvas, rng)
        canvas.scale(_finest(canvas, look, detail))
    canvas.scale(shade.astype(np.float32))
    if look.cavity > 0.0:
        canvas.scale(1.0 - np.float32(look.cavity) * step(fractal(detail, H, W, 2.5), -0.3, 0.9))
    return Tissue(np.clip(canvas.albedo, 0.0, 1.3), cv2.merge([slope_x + 8.0 * canvas.dull, slope_y, depth]))


def _wet(canvas: Canvas, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the slopes of the film of liquid, whose ripples are round: a highlight has no corners."""
    H, W = canvas.shape
    film = canvas.height + 0.1 * fractal(rng, H, W, 60, octaves=2)
    return _slopes(cv2.GaussianBlur(film, (0, 0), max(0.7, 0.0028 * W)), W)


def _finest(canvas: Canvas, look: Look, rng: np.random.Generator) -> Array:
    """Return the gain (H, W) of the finest texture: pores, and capillaries that are dark, thin and winding."""
    H, W = canvas.shape
    pores = fractal(rng, H, W, 90, octaves=3)
    ridge = np.abs(fractal(rng, H, W, 22, octaves=3))
    patchy = np.clip(0.5 + 0.6 * smooth(rng, H, W, 4), 0.0, 1.0)
    capillaries = np.exp(-((ridge / np.float32(0.11)) ** 2)) * patchy
    return np.clip(1.0 + np.float32(look.fine) * (0.05 * pores - 0.16 * capillaries), 0.5, 1.4)


def _slopes(height: Array, W: int) -> tuple[Array, Array]:
    """Return the slope (mm per mm) of a height map along x and y."""
    pixels_per_mm = 0.85 * W / CANVAS / 80.0
    slope_x = cv2.Sobel(height, cv2.CV_32F, 1, 0, scale=pixels_per_mm / 8)
    slope_y = cv2.Sobel(height, cv2.CV_32F, 0, 1, scale=pixels_per_mm / 8)
    return slope_x, slope_y
