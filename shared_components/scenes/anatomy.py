"""Things on the tissue that data sets label beside instruments' parts: organs, thread, needles, clamps, a probe.

They lie on a video's canvas and move with it. They are drawn from a stream of their own, so that instruments, and all
that is labelled of a video without such things, are the same with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from shared_components.scenes.look import RGB, Texture
from shared_components.scenes.noise import linear, step
from shared_components.scenes.tissue import Array, Canvas, lay_organ

_SEEN = 0.8  # chance that a video shows a thing
_LABELLED = 0.5  # of a pixel that is covered by more than this


@dataclass(frozen=True)
class _Organ:
    colour: RGB
    texture: Texture


@dataclass(frozen=True)
class _Object:
    """A rounded rod along a path; `wide` in canvas widths, `raised` in mm."""

    colour: RGB
    path: Callable[[np.random.Generator, float], Array]
    wide: float
    raised: float


def _turned(rng: np.random.Generator, ratio: float, points: Array) -> Array:
    """Turn points (N, 2) at random and put them in the middle part of a canvas of height `ratio`."""
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return points @ turn.T + rng.uniform((0.25, 0.25 * ratio), (0.75, 0.75 * ratio))


def _curve(rng: np.random.Generator, ratio: float) -> Array:
    """Return a smooth curve: a Bezier's of four random points."""
    t = np.linspace(0, 1, 40)[:, None]
    ends = rng.uniform((0.15, 0.15 * ratio), (0.85, 0.85 * ratio), (4, 2))
    return (1 - t) ** 3 * ends[0] + 3 * t * (1 - t) ** 2 * ends[1] + 3 * t**2 * (1 - t) * ends[2] + t**3 * ends[3]


def _arc(rng: np.random.Generator, ratio: float) -> Array:
    angle = np.linspace(0, rng.uniform(0.8, 1.2) * np.pi, 24)
    return _turned(rng, ratio, 0.055 * np.stack([np.cos(angle), np.sin(angle)], 1))


def _rod(length: float) -> Callable[[np.random.Generator, float], Array]:
    return lambda rng, ratio: _turned(rng, ratio, np.array([[-length / 2, 0.0], [length / 2, 0.0]]))


def _pipe(rng: np.random.Generator, ratio: float) -> Array:
    """Return a line from the edge to the middle part."""
    angle = rng.uniform(0, 2 * np.pi)
    end = rng.uniform((0.4, 0.4 * ratio), (0.6, 0.6 * ratio))
    return np.stack([end, end + 1.2 * np.array([np.cos(angle), np.sin(angle)])])


_THINGS: dict[str, _Organ | _Object] = {
    "kidney parenchyma": _Organ((120, 44, 40), "plain"),
    "covered kidney": _Organ((226, 186, 120), "lobular"),
    "small intestine": _Organ((232, 172, 160), "tubular"),
    "uterus": _Organ((214, 130, 138), "muscle"),
    "ultrasound probe": _Object((44, 70, 120), _rod(0.14), 0.055, 5.0),
    "suction instrument": _Object((176, 182, 190), _pipe, 0.026, 4.0),
    "clamps": _Object((60, 150, 96), _rod(0.07), 0.016, 2.0),
    "thread": _Object((120, 90, 190), _curve, 0.006, 0.8),
    "suturing needle": _Object((214, 218, 226), _arc, 0.008, 1.0),
}
"""From what lies lowest to what lies on top."""
THINGS = tuple(_THINGS)


def lay_things(rng: np.random.Generator, names: Sequence[str], canvas: Canvas, thread: Array) -> Array:
    """Lay things of these names, most of them in any one video, and return what is where.

    Args:
        thread: what the look's own thread covers already (H, W).

    Returns:
        uint8 (H, W) of the canvas: 0, or 1 + place of the thing in `names`.
    """
    there = np.zeros(canvas.shape, np.uint8)
    if "thread" in names:
        there[thread > _LABELLED] = 1 + names.index("thread")
    for name, thing in _THINGS.items():
        if name not in names or rng.random() >= _SEEN:
            continue
        if isinstance(thing, _Organ):
            cover = lay_organ(canvas, rng, linear(thing.colour), thing.texture)
        else:
            cover = _lay_object(canvas, rng, thing)
        there[cover > _LABELLED] = 1 + names.index(name)
    return there


def _lay_object(canvas: Canvas, rng: np.random.Generator, thing: _Object) -> Array:
    """Lay a rod, lighter along its middle and dark at its sides; return its cover (H, W)."""
    H, W = canvas.shape
    points = np.round(thing.path(rng, H / W) * W * 16).astype(np.int32)
    wide = max(2, round(thing.wide * W))
    mask = np.zeros((H, W), np.uint8)
    cv2.polylines(mask, [points], False, 255, wide, cv2.LINE_8, 4)
    inside = cv2.distanceTransform(mask, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) / np.float32(wide / 2)
    cover = step(inside, 0.0, 2.0 / wide)
    dome = np.sqrt(np.clip(1.0 - (1.0 - inside.clip(0, 1)) ** 2, 0.0, 1.0))
    canvas.blend(linear(thing.colour) * (0.35 + 0.65 * dome)[..., None], cover)
    canvas.height += cover * (thing.raised * dome)
    return cover
