"""What lies on the organs: vessels, blood, gauze and suture thread."""

import cv2
import numpy as np

from shared_components.data.synthetic.canvas import Canvas
from shared_components.data.synthetic.look import Look
from shared_components.data.synthetic.noise import fractal, linear, step

Array = np.ndarray

_THREADS = ((120, 90, 190), (220, 220, 215), (40, 60, 150))


def draw_vessels(canvas: Canvas, look: Look, rng: np.random.Generator) -> None:
    """Draw branching vessels that shine through and raise the surface a little."""
    H, W = canvas.shape
    mask = np.zeros((H, W), np.uint8)
    for _ in range(round(look.vessels * rng.integers(6, 12))):
        start, angle = rng.uniform((0, 0), (W, H)), rng.uniform(0, 2 * np.pi)
        _grow(mask, rng, start, angle, wide=W * rng.uniform(0.004, 0.011), stride=W * 0.02, forks=3)
    cover = cv2.GaussianBlur(mask, (0, 0), W * 0.0016).astype(np.float32) / 255.0
    canvas.blend(linear(look.vessel), 0.72 * cover)
    canvas.height += 0.35 * cover


def _grow(
    mask: Array, rng: np.random.Generator, start: Array, angle: float, *, wide: float, stride: float, forks: int
) -> None:
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


def spill_blood(canvas: Canvas, look: Look, rng: np.random.Generator) -> None:
    """Pool blood in the hollows: dark and smooth."""
    H, W = canvas.shape
    if look.blood <= 0.0:
        return
    level = fractal(rng, H, W, 4) - 0.12 * (canvas.height - canvas.height.mean())
    edge = float(np.quantile(level[::4, ::4], 1.0 - 0.7 * look.blood))
    cover = 0.85 * step(level, edge - 0.1, edge + 0.35)
    canvas.blend(linear((128, 10, 12)), cover)
    canvas.height += cover * (cv2.blur(canvas.height, (W // 30, W // 30)) - canvas.height)


def lay_gauze(canvas: Canvas, rng: np.random.Generator) -> None:
    """Lay a woven white-grey swab, partly soaked, that never glints: as bright and as grey as an instrument."""
    H, W = canvas.shape
    along, across = canvas.turned(rng)
    bend = 0.02 * fractal(rng, H, W, 5)
    along, across = along + bend, across - bend
    inside = np.minimum(rng.uniform(0.12, 0.24) - np.abs(along), rng.uniform(0.04, 0.1) - np.abs(across))
    cover = step(inside, 0.0, 0.008)
    weave = 0.84 + 0.1 * np.sin(along * 420) * np.sin(across * 420) + 0.06 * fractal(rng, H, W, 20)
    soak = 0.8 * step(fractal(rng, H, W, 5), 0.2, 1.2)
    dry, wet = linear((206, 204, 200)), linear((190, 60, 56)) - 1.0
    canvas.blend(dry * weave[..., None] * (1.0 + wet * soak[..., None]), cover)
    canvas.height += cover * (2.0 + 0.6 * fractal(rng, H, W, 10))
    canvas.dull = np.maximum(canvas.dull, cover)


def draw_thread(canvas: Canvas, rng: np.random.Generator) -> None:
    """Lay a suture thread in a smooth curve."""
    H, W = canvas.shape
    time = np.linspace(0, 1, 40)
    ends = rng.uniform((0.1, 0.1), (0.9, 0.9), (4, 2))
    weights = np.stack([(1 - time) ** 3, 3 * time * (1 - time) ** 2, 3 * time**2 * (1 - time), time**3], 1)
    points = np.round(weights @ ends * (W, H) * 16).astype(np.int32)
    mask = np.zeros((H, W), np.uint8)
    cv2.polylines(mask, [points], False, 255, max(1, round(W * 0.0035)), cv2.LINE_AA, 4)
    cover = mask.astype(np.float32) / 255.0
    canvas.blend(linear(_THREADS[int(rng.integers(len(_THREADS)))]), cover)
    canvas.height += 0.8 * cover
