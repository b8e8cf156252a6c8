"""Organs and objects on the tissue that data sets label beside instruments: kidney, thread, needles, clamps, a probe.

They lie on a video's canvas and move with it. They have a separate random stream, so that instruments and their labels
are the same with and without them.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from shared_components.scenes.look import RGB, Texture
from shared_components.scenes.noise import linear
from shared_components.scenes.tissue import Array, Canvas, lay_organ, rod_profile

_SHOWN = 0.8  # chance that a video shows an object
_LABELLED = 0.5  # pixels covered by more than this have the object's label


def _turned(rng: Generator, ratio: float, points: Array) -> Array:
    """Turn points (N, 2) at random and move them into the middle of a canvas of height `ratio`."""
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return points @ turn.T + rng.uniform((0.25, 0.25 * ratio), (0.75, 0.75 * ratio))


def _curve(rng: Generator, ratio: float) -> Array:
    """Return a Bezier curve of four random points."""
    t = np.linspace(0, 1, 40)[:, None]
    ends = rng.uniform((0.15, 0.15 * ratio), (0.85, 0.85 * ratio), (4, 2))
    return (1 - t) ** 3 * ends[0] + 3 * t * (1 - t) ** 2 * ends[1] + 3 * t**2 * (1 - t) * ends[2] + t**3 * ends[3]


def _arc(rng: Generator, ratio: float) -> Array:
    angle = np.linspace(0, rng.uniform(0.8, 1.2) * np.pi, 24)
    return _turned(rng, ratio, 0.055 * np.stack([np.cos(angle), np.sin(angle)], 1))


def _rod(length: float) -> Callable[[Generator, float], Array]:
    return lambda rng, ratio: _turned(rng, ratio, np.array([[-length / 2, 0.0], [length / 2, 0.0]]))


def _pipe(rng: Generator, ratio: float) -> Array:
    """Return a line from the edge to the middle."""
    angle = rng.uniform(0, 2 * np.pi)
    end = rng.uniform((0.4, 0.4 * ratio), (0.6, 0.6 * ratio))
    return np.stack([end, end + 1.2 * np.array([np.cos(angle), np.sin(angle)])])


_ORGANS: dict[str, tuple[RGB, Texture]] = {
    "kidney parenchyma": ((120, 44, 40), "plain"),
    "covered kidney": ((226, 186, 120), "lobular"),
    "small intestine": ((232, 172, 160), "tubular"),
    "uterus": ((214, 130, 138), "muscle"),
}
# rounded rods: colour, path, width in canvas widths, height in mm
_RODS: dict[str, tuple[RGB, Callable[[Generator, float], Array], float, float]] = {
    "ultrasound probe": ((44, 70, 120), _rod(0.14), 0.055, 5.0),
    "suction instrument": ((176, 182, 190), _pipe, 0.026, 4.0),
    "clamps": ((60, 150, 96), _rod(0.07), 0.016, 2.0),
    "thread": ((120, 90, 190), _curve, 0.006, 0.8),
    "suturing needle": ((214, 218, 226), _arc, 0.008, 1.0),
}
THINGS = (*_ORGANS, *_RODS)
"""Names of the organs and objects, from the lowest to the highest layer."""


def lay_things(rng: Generator, names: Sequence[str], canvas: Canvas, thread: Array) -> Array:
    """Lay most of the named organs and objects, from `THINGS`; `thread` is the cover (H, W) of the look's own thread.

    Return their labels, uint8 (H, W) of the canvas: 0, or 1 + index into `names`.
    """
    labels = np.zeros(canvas.shape, np.uint8)
    if "thread" in names:
        labels[thread > _LABELLED] = 1 + names.index("thread")
    for name in THINGS:
        if name not in names or rng.random() >= _SHOWN:
            continue
        if name in _ORGANS:
            colour, texture = _ORGANS[name]
            cover = lay_organ(canvas, rng, linear(colour), texture)
        else:
            cover = _lay_rod(canvas, rng, *_RODS[name])
        labels[cover > _LABELLED] = 1 + names.index(name)
    return labels


def _lay_rod(
    canvas: Canvas, rng: Generator, colour: RGB, path: Callable[[Generator, float], Array], width: float, height: float
) -> Array:
    """Lay a rod, lighter along its middle and dark at its sides; return its cover (H, W)."""
    H, W = canvas.shape
    cover, dome = rod_profile(canvas, path(rng, H / W), width)
    canvas.blend(linear(colour) * (0.35 + 0.65 * dome)[..., None], cover)
    canvas.height += cover * (height * dome)
    return cover
