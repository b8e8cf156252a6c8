"""Looks drawn from a number, wider than any named one, so that a network learns what does not change with them."""

from __future__ import annotations

import colorsys
from typing import Any, get_args

import numpy as np

from shared_components.data.synthetic.look import RGB, Look, Texture
from shared_components.data.synthetic.noise import stream

_STREAM = 2  # beside geometry and appearance
_KINDS: tuple[Texture, ...] = get_args(Texture)
_CUSTOMS = ("robotic", "laparoscopic", "mixed")


def random_look(number: int) -> Look:
    """Draw a look: the same number gives the same look, always."""
    rng = stream(number, _STREAM)
    return Look(
        name=f"random-{number}",
        text="drawn at random",
        organs=_organs(rng),
        custom=_CUSTOMS[int(rng.integers(3))],
        **_clutter(rng),
        **_light(rng),
        **_camera(rng),
        **_materials(rng),
    )


def _organs(rng: np.random.Generator) -> tuple[tuple[RGB, Texture], ...]:
    """Draw two to five kinds of tissue about one palette: reds and yellows mostly, now and then any hue."""
    hue = rng.normal(0.02, 0.045) if rng.random() < 0.93 else rng.random()
    spread, rich = rng.uniform(0.01, 0.08), rng.uniform(0.05, 0.9)
    bright = rng.uniform(0.35, 0.95)
    found = []
    for _ in range(int(rng.integers(2, 6))):
        faded = 0.2 if rng.random() < 0.15 else 1.0  # a gallbladder is as grey and as smooth as a shaft
        colour = _colour(
            hue + rng.normal(0, spread), faded * rich * rng.uniform(0.5, 1.15), bright * rng.uniform(0.6, 1.15)
        )
        found.append((colour, _KINDS[int(rng.integers(len(_KINDS)))]))
    return tuple(found)


def _colour(hue: float, saturation: float, value: float) -> RGB:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, min(max(saturation, 0), 1), min(max(value, 0.02), 1))
    return round(255 * red), round(255 * green), round(255 * blue)


def _grey(rng: np.random.Generator, low: float, high: float) -> RGB:
    """Draw a grey with a touch of colour."""
    return _colour(rng.random(), abs(rng.normal(0, 0.07)), rng.uniform(low, high))


def _clutter(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "vessel": _colour(rng.normal(0.98, 0.04), rng.uniform(0.5, 1.0), rng.uniform(0.15, 0.7)),
        "vessels": rng.uniform(0.0, 2.2),
        "blood": rng.uniform(0.0, 0.7) * (rng.random() < 0.6),
        "gauze": 0.4,
        "thread": 0.35,
        "fine": rng.uniform(0.0, 1.8),
    }


def _light(rng: np.random.Generator) -> dict[str, Any]:
    warm = rng.normal(0, 0.12)
    return {
        "light": _channels(1.0 + warm, 1.0 + rng.normal(0, 0.05), 1.0 - warm),
        "exposure": float(np.exp(rng.uniform(np.log(0.55), np.log(1.8)))),
        "contrast": rng.uniform(0.75, 1.35),
        "vignette": rng.uniform(0.05, 0.95),
        "cavity": rng.uniform(0.3, 0.97) * (rng.random() < 0.5),
        "gloss": rng.uniform(0.0, 1.5),
        "glint": rng.uniform(0.06, 0.24),
        "haze": rng.uniform(0.0, 0.22) * (rng.random() < 0.35),
        "smoke": rng.uniform(0.0, 0.7) * (rng.random() < 0.5),
    }


def _channels(*gains: float) -> RGB:
    """Return a light's colour from the gains of its channels, the strongest being 255."""
    red, green, blue = (round(255 * max(gain, 0.2) / max(gains)) for gain in gains)
    return red, green, blue


def _camera(rng: np.random.Generator) -> dict[str, Any]:
    shape = ("full", "full", "circle", "corners")[int(rng.integers(4))]
    least = rng.uniform(0.40, 0.54) if shape == "circle" else rng.uniform(0.54, 0.62)
    return {
        "noise": rng.uniform(0.0, 5.0),
        "blur": rng.uniform(0.8, 4.0),
        "compression": int(rng.integers(25, 95)) if rng.random() < 0.4 else 0,
        "aperture": shape,
        "field": (least, least + 0.02),
    }


def _materials(rng: np.random.Generator) -> dict[str, Any]:
    """Draw shafts from black over steel to white, and tips as dark or as bright."""
    return {
        "shaft": _grey(rng, *((0.05, 0.3), (0.2, 0.6), (0.5, 0.95))[int(rng.integers(3))]),
        "shine": float(rng.choice((0.05, 0.16, 0.4, 0.9))) * rng.uniform(0.7, 1.3),
        "metal": _grey(rng, 0.35, 0.95),
        "accent": _colour(rng.random(), rng.uniform(0.0, 0.8), rng.uniform(0.2, 0.9)),
        "pale": _grey(rng, 0.7, 1.0),
        "steel": 0.3 * (rng.random() < 0.6),
        "coat": 0.2 * (rng.random() < 0.5),
        "painted": 0.2,
        "tarnish": rng.uniform(0.0, 0.6) * (rng.random() < 0.6),
    }
