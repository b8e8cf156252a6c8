"""Looks drawn from numbers, by family; they vary more than the named looks.

Each family except `random` is close to one kind of real video: `surgery` (laparoscopic and robotic operations),
`microscope` (eyes) and `flexible` (endoscopies). The bits of `random-<number>` never change.
"""

import colorsys
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from numpy.random import Generator

from shared_components.scenes.look import RGB, Look, Organs, Texture
from shared_components.scenes.noise import stream

_STREAM = 2  # other streams: geometry 0, appearance 1
_TEXTURES: tuple[Texture, ...] = get_args(Texture)
EMPTY = 0.08
"""Chance that a phase of a drawn operation shows no instrument. With the arms' pauses, one frame in six is empty, as in
ROBUST-MIS 2019, where 996 of 5,983 training frames have no instrument (arXiv 2003.10299)."""

# fmt: off
# tissues of abdomen and pelvis, as in laparoscopic and robotic video
_TISSUES: Organs = (
    ((196, 92, 92), "membrane"), ((214, 128, 118), "membrane"), ((226, 176, 166), "membrane"),
    ((176, 70, 72), "muscle"), ((150, 50, 46), "muscle"), ((126, 52, 42), "plain"),
    ((96, 40, 38), "plain"), ((214, 150, 136), "tubular"), ((206, 170, 140), "tubular"),
    ((232, 184, 150), "tubular"), ((222, 168, 70), "lobular"), ((236, 196, 110), "lobular"),
    ((240, 214, 150), "lobular"), ((228, 190, 120), "plain"), ((172, 156, 150), "plain"),
    ((140, 142, 140), "plain"), ((150, 160, 140), "plain"), ((188, 180, 186), "membrane"),
    ((112, 92, 106), "plain"), ((212, 206, 196), "plain"), ((226, 214, 204), "membrane"),
    ((92, 74, 92), "plain"), ((204, 112, 120), "plain"), ((230, 160, 150), "plain"),
)
# hue, saturation and value
_IRISES = ((0.06, 0.6, 0.35), (0.08, 0.5, 0.2), (0.57, 0.4, 0.55), (0.3, 0.25, 0.45), (0.6, 0.12, 0.5))
_PUPILS = (
    (0.02, 0.85, 0.7), (0.05, 0.8, 0.7), (0.03, 0.7, 0.4), (0.08, 0.3, 0.1), (0.08, 0.3, 0.3), (0.12, 0.1, 0.8),
)


def random_look(number: int) -> Look:
    """Draw a look from the widest ranges."""
    rng = stream(number, _STREAM)
    organs, technique = _organs(rng), ("robotic", "laparoscopic", "mixed")[int(rng.integers(3))]
    return Look(
        name=f"random-{number}", text="drawn at random", organs=organs, technique=technique,
        **_clutter(rng), **_light(rng), **_camera(rng), **_materials(rng),
    )


def _organs(rng: Generator) -> Organs:
    """Draw two to five kinds of tissue around one palette: mostly reds and yellows, sometimes any hue."""
    hue = rng.normal(0.02, 0.045) if rng.random() < 0.93 else rng.random()
    spread, rich = rng.uniform(0.01, 0.08), rng.uniform(0.05, 0.9)
    bright = rng.uniform(0.35, 0.95)
    organs = []
    for _ in range(int(rng.integers(2, 6))):
        faded = 0.2 if rng.random() < 0.15 else 1.0  # a gallbladder is as grey and as smooth as a shaft
        organ_hue, saturation = hue + rng.normal(0, spread), faded * rich * rng.uniform(0.5, 1.15)
        colour = _colour(organ_hue, saturation, bright * rng.uniform(0.6, 1.15))
        organs.append((colour, _TEXTURES[int(rng.integers(len(_TEXTURES)))]))
    return tuple(organs)


def _colour(hue: float, saturation: float, value: float) -> RGB:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, min(max(saturation, 0), 1), min(max(value, 0.02), 1))
    return round(255 * red), round(255 * green), round(255 * blue)


def _grey(rng: Generator, low: float, high: float) -> RGB:
    """Draw a grey with a touch of colour."""
    return _colour(rng.random(), abs(rng.normal(0, 0.07)), rng.uniform(low, high))


def _jittered(rng: Generator, colour: RGB) -> RGB:
    hue, saturation, value = colorsys.rgb_to_hsv(*(channel / 255 for channel in colour))
    hue, saturation = hue + rng.normal(0, 0.2 * 0.06), saturation * float(np.exp(rng.normal(0, 2.5 * 0.06)))
    return _colour(hue, saturation, value * float(np.exp(rng.normal(0, 2 * 0.06))))


def _clutter(rng: Generator) -> dict[str, Any]:
    return {
        "vessel": _colour(rng.normal(0.98, 0.04), rng.uniform(0.5, 1.0), rng.uniform(0.15, 0.7)),
        "vessels": rng.uniform(0.0, 2.2), "blood": rng.uniform(0.0, 0.7) * (rng.random() < 0.6),
        "gauze": 0.4, "thread": 0.35, "fine": rng.uniform(0.0, 1.8),
    }


def _light(rng: Generator) -> dict[str, Any]:
    warm = rng.normal(0, 0.12)
    return {
        "light": _channels(1.0 + warm, 1.0 + rng.normal(0, 0.05), 1.0 - warm),
        "exposure": float(np.exp(rng.uniform(np.log(0.55), np.log(1.8)))), "contrast": rng.uniform(0.75, 1.35),
        "vignette": rng.uniform(0.05, 0.95), "cavity": rng.uniform(0.3, 0.97) * (rng.random() < 0.5),
        "gloss": rng.uniform(0.0, 1.5), "glint": rng.uniform(0.06, 0.24),
        "haze": rng.uniform(0.0, 0.22) * (rng.random() < 0.35), "smoke": rng.uniform(0.0, 0.7) * (rng.random() < 0.5),
    }


def _real_light(rng: Generator) -> dict[str, Any]:
    """Draw a light of real operations: whiter and better exposed than the light of random looks."""
    warm = rng.normal(0, 0.05)
    return _light(rng) | {
        "light": _channels(1.0 + warm, 1.0 + rng.normal(0, 0.025), 1.0 - warm),
        "exposure": float(np.exp(rng.normal(-0.05, 0.22))), "contrast": rng.uniform(0.85, 1.25),
        "haze": rng.uniform(0.0, 0.2) * (rng.random() < 0.15),
    }


def _channels(*gains: float) -> RGB:
    """Return a light's colour from the gains of its channels; the strongest channel is 255."""
    red, green, blue = (round(255 * max(gain, 0.2) / max(gains)) for gain in gains)
    return red, green, blue


def _camera(rng: Generator) -> dict[str, Any]:
    shape = ("full", "full", "circle", "corners")[int(rng.integers(4))]
    radius = rng.uniform(0.40, 0.54) if shape == "circle" else rng.uniform(0.54, 0.62)
    return {
        "noise": rng.uniform(0.0, 5.0), "blur": rng.uniform(0.8, 4.0),
        "compression": int(rng.integers(25, 95)) if rng.random() < 0.4 else 0,
        "aperture": shape, "field": (radius, radius + 0.02),
    }


def _materials(rng: Generator) -> dict[str, Any]:
    """Draw shafts from black over steel to white, and tips as dark or as bright."""
    return {
        "shaft": _grey(rng, *((0.05, 0.3), (0.2, 0.6), (0.5, 0.95))[int(rng.integers(3))]),
        "shine": float(rng.choice((0.05, 0.16, 0.4, 0.9))) * rng.uniform(0.7, 1.3), "metal": _grey(rng, 0.35, 0.95),
        "accent": _colour(rng.random(), rng.uniform(0.0, 0.8), rng.uniform(0.2, 0.9)), "pale": _grey(rng, 0.7, 1.0),
        "steel": 0.3 * (rng.random() < 0.6), "coat": 0.2 * (rng.random() < 0.5), "painted": 0.2,
        "tarnish": rng.uniform(0.0, 0.6) * (rng.random() < 0.6),
    }


def _overlays(rng: Generator, **chances: float) -> tuple[str, ...]:
    """Draw a recorder's overlays, each with its chance."""
    return tuple(name for name, chance in chances.items() if rng.random() < chance)


def surgery_look(number: int) -> Look:
    """Draw a laparoscopic or robotic operation with instruments in real proportions; some have no instruments."""
    rng = stream(number, _STREAM, 1)
    tissues = [_TISSUES[int(n)] for n in rng.integers(len(_TISSUES), size=int(rng.integers(2, 6)))]
    smooth = rng.random() < 0.3
    organs = tuple((_jittered(rng, colour), "plain" if smooth else texture) for colour, texture in tissues)
    robot = rng.random() < 0.55
    light, materials = _real_light(rng), _materials(rng)
    light["cavity"] = rng.uniform(0.5, 0.99) * (rng.random() < 0.4)
    if rng.random() < 0.3:  # wet tissue in a bright light
        light |= {"gloss": rng.uniform(1.0, 2.2), "glint": rng.uniform(0.2, 0.5)}
    if robot and rng.random() < 0.75:  # brushed carbon and bright metal
        materials |= {"shaft": _grey(rng, 0.14, 0.5), "metal": _grey(rng, 0.7, 0.95), "painted": 0.0}
        materials |= {"shine": rng.uniform(0.1, 0.4), "steel": 0.2 * (rng.random() < 0.5)}
    return Look(
        name=f"surgery-{number}", text="a drawn operation, laparoscopic or robotic", organs=organs,
        technique="wristed" if robot else "laparoscopic", real=True, bands=int(rng.integers(4)) * (rng.random() < 0.5),
        empty=_empty(rng), barrel=rng.uniform(0.05, 0.4) * (rng.random() < 0.35),
        recorder=_overlays(rng, border=0.12, text=0.08, inset=0.04, mark=0.06),
        **_clutter(rng), **light, **_camera(rng), **materials,
    )


def _empty(rng: Generator) -> float:
    return 1.0 if rng.random() < 0.05 else EMPTY


def microscope_look(number: int) -> Look:
    """Draw an operation on an eye under a microscope, with a ring light from straight ahead."""
    rng = stream(number, _STREAM, 2)
    lids = _colour(rng.uniform(0.0, 0.09), rng.uniform(0.2, 0.6), rng.uniform(0.35, 0.9))
    if rng.random() < 0.4:  # a drape
        lids = _colour(rng.uniform(0.35, 0.65), rng.uniform(0.1, 0.6), rng.uniform(0.25, 0.9))
    sclera = _colour(rng.uniform(-0.02, 0.1), rng.uniform(0.04, 0.35), rng.uniform(0.65, 0.98))
    hue, saturation, value = _IRISES[int(rng.integers(len(_IRISES)))]
    iris = _colour(hue + rng.normal(0, 0.02), saturation * rng.uniform(0.6, 1.3), value * rng.uniform(0.6, 1.5))
    pupil = _jittered(rng, _colour(*_PUPILS[int(rng.integers(len(_PUPILS)))]))
    camera, materials = _camera(rng), _materials(rng)
    return Look(
        name=f"microscope-{number}", text="a drawn operation on an eye under a microscope",
        organs=tuple((colour, "plain") for colour in (lids, sclera, iris, pupil)), ground="eye", technique="cataract",
        real=True, empty=_empty(rng),
        vessel=_colour(rng.normal(0.99, 0.02), rng.uniform(0.5, 0.9), rng.uniform(0.4, 0.8)),
        vessels=rng.uniform(0.2, 2.0), blood=rng.uniform(0.0, 0.25) * (rng.random() < 0.4), lamp=(0.0, 0.12),
        recorder=_overlays(rng, border=0.2, text=0.12, inset=0.05, mark=0.1), **camera,
        **_real_light(rng)
        | {"vignette": rng.uniform(0.0, 0.5), "gloss": rng.uniform(0.1, 0.8), "smoke": 0.0, "haze": 0.0},
        **materials | {"metal": _grey(rng, 0.6, 0.95), "tarnish": 0.0},
    )


def flexible_look(number: int) -> Look:
    """Draw an endoscopy of a hollow organ by a flexible endoscope, often behind a black octagon beside text."""
    rng = stream(number, _STREAM, 3)
    hue, rich = rng.normal(0.03, 0.02), rng.uniform(0.25, 0.75)
    wall = _colour(hue, rich, rng.uniform(0.6, 0.95))
    growths: Organs = tuple(
        (_colour(hue + rng.normal(-0.02, 0.02), rich * rng.uniform(0.6, 1.4), rng.uniform(0.5, 0.95)), "plain")
        for _ in range(int(rng.integers(3)))
    )
    narrow = rng.random() < 0.12  # narrow-band light
    camera = _camera(rng)
    camera["aperture"] = ("octagon", "octagon", "octagon", "circle", "corners", "full")[int(rng.integers(6))]
    return Look(
        name=f"flexible-{number}", text="a drawn endoscopy by a flexible endoscope",
        organs=((wall, ("plain", "membrane")[int(rng.integers(2))]), *growths), ground="lumen", technique="endoscopy",
        real=True, empty=_empty(rng),
        vessel=_colour(rng.normal(0.99, 0.03), rng.uniform(0.5, 0.9), rng.uniform(0.3, 0.7)),
        vessels=rng.uniform(0.0, 2.0), blood=rng.uniform(0.0, 0.4) * (rng.random() < 0.3), lamp=(0.02, 0.15),
        barrel=rng.uniform(0.1, 0.7), tint=0.7 * narrow, hue=(90, 210, 190) if narrow else (255, 255, 255),
        recorder=_overlays(rng, column=0.5, text=0.25, inset=0.15, mark=0.15), **camera,
        **_real_light(rng)
        | {"vignette": rng.uniform(0.0, 0.6), "gloss": rng.uniform(0.1, 0.7), "glint": rng.uniform(0.05, 0.12)}
        | {"smoke": 0.0},
        **_materials(rng) | {"tarnish": rng.uniform(0.0, 0.2)},
    )


# fmt: on
FAMILIES: dict[str, Callable[[int], Look]] = {
    "random": random_look,
    "surgery": surgery_look,
    "microscope": microscope_look,
    "flexible": flexible_look,
}  # fmt: skip
"""Functions from a number to a look, by family; a number always gives the same look."""
