"""The canvas on which one video's tissue is painted."""

import cv2
import numpy as np

from shared_components.data.synthetic.noise import fractal

Array = np.ndarray


class Canvas:
    """Albedo (H, W, 3), height in mm (H, W) and dullness (H, W: 1 where nothing glints), all float32.

    `x` and `y` are pixel coordinates in canvas widths. `mottle` (a gain about 1) and `bump` (mm) are fine detail
    that all tissue shares; without detail they are flat.
    """

    def __init__(self, rng: np.random.Generator, height: int, width: int, *, detail: bool) -> None:
        self.shape = (height, width)
        self.x = np.tile(np.arange(width, dtype=np.float32) / np.float32(width), (height, 1))
        self.y = np.tile(np.arange(height, dtype=np.float32)[:, None] / np.float32(width), (1, width))
        self.albedo = np.ones((height, width, 3), np.float32)
        self.height = 4.0 * fractal(rng, height, width, 3)
        self.dull = np.zeros(self.shape, np.float32)
        self._scratch = (np.empty_like(self.albedo), np.empty_like(self.albedo))  # fresh pages are slow
        self.detail = detail
        if detail:
            self.mottle = 1.0 + 0.14 * fractal(rng, height, width, 8, octaves=4)
            self.bump = 0.15 * fractal(rng, height, width, 30, octaves=2)

    def blend(self, colour: Array, cover: Array) -> None:
        """Mix a colour, (3,) or (H, W, 3) linear light, into the albedo by `cover` (H, W) in [0, 1]."""
        change, share = self._scratch
        np.subtract(colour, self.albedo, out=change)
        cv2.merge([cover] * 3, share)
        change *= share
        self.albedo += change

    def scale(self, gain: Array) -> None:
        """Multiply the albedo by `gain` (H, W)."""
        self.albedo *= cv2.merge([gain] * 3)

    def turned(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return coordinates (H, W) around a random centre, along and across a random direction."""
        H, W = self.shape
        x, y = self.x - rng.uniform(0.0, 1.0), self.y - rng.uniform(0.0, H / W)
        angle = rng.uniform(0.0, np.pi)
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        return x * cos + y * sin, y * cos - x * sin
