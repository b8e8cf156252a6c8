"""Smooth random fields for tissue, smoke and stains, and their random streams."""

import cv2
import numpy as np

Array = np.ndarray


def stream(*key: int) -> np.random.Generator:
    """Return the random generator of a key, with the same numbers in every process."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def smooth(rng: np.random.Generator, height: int, width: int, cells: float) -> Array:
    """Return a float32 (H, W) field of about unit variance with `cells` bumps across the width."""
    cell = max(1, round(width / cells))
    coarse = 4 if cell >= 24 else 2 if cell >= 10 else 1
    cell = -(-cell // coarse)
    h, w = -(-height // coarse), -(-width // coarse)
    columns, rows = -(-w // cell) + 3, -(-h // cell) + 3
    grid = rng.standard_normal((rows, columns), dtype=np.float32)
    field = cv2.resize(grid, (columns * cell, rows * cell), interpolation=cv2.INTER_CUBIC)
    field = field[cell : cell + h, cell : cell + w]
    if coarse == 1:
        return field
    field = cv2.resize(field, (w * coarse, h * coarse))[:height, :width]
    return cv2.blur(field, (coarse, coarse))  # hides the creases of linear interpolation


def fractal(rng: np.random.Generator, height: int, width: int, cells: float, *, octaves: int = 3) -> Array:
    """Return the sum of `octaves` smooth fields, each twice as fine and half as strong."""
    field = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        field += 0.5**octave * smooth(rng, height, width, cells * 2**octave)
    return field


def step(field: Array, low: float, high: float) -> Array:
    """Return the smooth step of `field` from 0 at `low` to 1 at `high`."""
    position = np.clip((field - low) / (high - low), 0.0, 1.0)
    return position * position * (3.0 - 2.0 * position)


def linear(colour: tuple[int, int, int]) -> Array:
    """Convert an sRGB colour (0 to 255) to linear light, float32 (3,) in [0, 1]."""
    return (np.asarray(colour, np.float32) / 255.0) ** np.float32(2.2)
