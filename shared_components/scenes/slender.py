"""Thin instruments of eye surgery and of flexible endoscopy.

Handle, tube or sheath are shaft. A phaco tip's sleeve and a forceps' joint are wrist. Blades, tips, cups, loops and
balloons are clasper. An eye and its instruments are rendered at twice their size.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.random import Generator

from shared_components.scenes.carving import ACCENT, CLEAR, DARK, METAL, PALE, Carver, Plate, Point
from shared_components.scenes.instruments import Tool
from shared_components.scenes.noise import stream

OCULAR = ("Keratome", "Eye_Forceps", "Phaco_Tip", "Eye_Cannula", "Chopper")
ENDOSCOPIC = ("Snare", "Biopsy_Forceps", "Balloon", "Injection_Needle")
KINDS = (*OCULAR, *ENDOSCOPIC)
MODELS = 12
"""Models of each kind."""
WIDEST = {"Eye_Forceps": 0.35, "Biopsy_Forceps": 1.6}
"""Largest opening of a kind's jaws in radians; other kinds have one tip."""
_SEED = 79


@lru_cache(maxsize=64)
def slender_tool(kind: str, scale: float, model: int) -> Tool:
    """Build one model of a kind at `scale` pixels per mm."""
    return _BUILD[kind](scale, stream(_SEED, KINDS.index(kind), model))


def _handle(scale: float, rng: Generator, radius: float, taper: float) -> Plate:
    """Build a tube that narrows to `taper` of its radius over the last 12 mm."""
    material = (METAL, METAL, DARK, PALE, ACCENT)[int(rng.integers(5))]
    carver = Carver(-130.0, 1.0, radius + 0.1, scale)
    carver.turned([(-131.0, radius), (-11.0, radius), (0.8, taper * radius)], material=material)
    carver.streaks(rng, 0.08)
    if rng.random() < 0.5:  # a knurled or ringed grip
        for x in np.arange(-rng.uniform(30.0, 60.0), -12.0, 1.5):
            carver.shade_band(x, 0.35, 0.5)
    return carver.plate(0.05, rng)


def _tip(scale: float, rng: Generator, length: float, half: float) -> Carver:
    return Carver(-1.5, length + 1.0, half + 1.1, scale)


def _keratome(scale: float, rng: Generator) -> Tool:
    length, half, neck = rng.uniform(6.0, 11.0), rng.uniform(0.9, 3.2), rng.uniform(0.5, 0.9)
    carver = _tip(scale, rng, length + 3.0, half)
    wide = rng.uniform(0.3, 0.7) * length  # length of the widest part
    edge: list[Point] = [(-1.0, neck), (2.0, neck), (3.0, half), (3.0 + wide, half), (3.0 + length, 0.0)]
    carver.body([*edge, *((x, -y) for x, y in edge[-2::-1])], thick=0.7, round_=0.5)
    carver.groove((3.0, 0.0), (2.5 + length, 0.0), 0.2, dark=1.3)
    return _single_tip(carver, rng, _handle(scale, rng, rng.uniform(1.2, 2.4), 0.45), 0.03)


def _eye_forceps(scale: float, rng: Generator) -> Tool:
    length, half = rng.uniform(10.0, 18.0), rng.uniform(0.35, 0.7)
    carver = _tip(scale, rng, length, 2.0)
    hook = rng.uniform(0.0, 1.2)
    below = [(-1.0, 0.0), (length - 1.5, 0.0), (length, -hook)]
    carver.body([*below, (length, half - hook), (length - 1.5, 1.2 * half), (-1.0, 2 * half)], thick=0.8, round_=0.6)
    plate, joint = carver.plate(0.05, rng), rng.uniform(2.0, 4.0)
    neck = _tip(scale, rng, joint, 1.2)
    neck.tube(rng.uniform(0.8, 1.1), 1.0, end=joint, material=METAL)
    shaft = _handle(scale, rng, rng.uniform(0.9, 1.9), 0.7)
    return Tool(shaft, neck.plate(0.05, rng), (plate, plate.mirrored()), joint, solid=True)


def _cut_end(carver: Carver, length: float, bevel: float, radius: float) -> None:
    """Raise a round tip whose end is cut at an angle over `bevel` mm."""
    outline = [(-1.0, -radius), (length - bevel, -radius), (length, radius), (-1.0, radius)]
    carver.body(outline, thick=radius, round_=radius)


def _single_tip(carver: Carver, rng: Generator, shaft: Plate, grain: float = 0.05) -> Tool:
    """Attach one tip to the shaft, without a wrist."""
    return Tool(shaft, None, (carver.plate(grain, rng),), 0.0, solid=True)


def _phaco_tip(scale: float, rng: Generator) -> Tool:
    sleeve, length, radius = rng.uniform(6.0, 12.0), rng.uniform(3.0, 6.0), rng.uniform(0.9, 1.4)
    carver = _tip(scale, rng, length, radius)
    bevel = rng.uniform(0.3, 2.0)
    _cut_end(carver, length, bevel, radius)
    opening = [(length - bevel, -0.5 * radius), (length - 0.3, 0.6 * radius), (length - bevel, 0.6 * radius)]
    carver.sink(opening, deep=1.0, dark=0.2)
    cover, wide = _tip(scale, rng, sleeve, 2.4), radius + rng.uniform(0.5, 1.0)
    material = (PALE, ACCENT, CLEAR, METAL)[int(rng.integers(4))]
    cover.turned([(-1.4, wide), (0.7 * sleeve, 0.95 * wide), (sleeve + 0.5, radius)], material=material)
    port = 0.75 * sleeve
    cover.sink([(port - 0.9, -0.4), (port + 0.9, -0.4), (port + 0.9, 0.4), (port - 0.9, 0.4)], deep=0.8, dark=0.3)
    shaft = _handle(scale, rng, rng.uniform(2.2, 3.6), 0.75)
    return Tool(shaft, cover.plate(0.03, rng), (carver.plate(0.05, rng),), sleeve, solid=True)


def _eye_cannula(scale: float, rng: Generator) -> Tool:
    length, bend, radius = rng.uniform(6.0, 13.0), rng.uniform(0.0, 4.0), rng.uniform(0.3, 0.7)
    carver = _tip(scale, rng, length, bend + 1.0)
    x = np.linspace(-1.0, length, 14)
    y = bend * np.clip((x / length - 0.35) / 0.65, 0.0, 1.0) ** 2
    carver.wire(list(zip(x, y, strict=True)), radius)
    return _single_tip(carver, rng, _handle(scale, rng, radius * rng.uniform(1.2, 3.5), rng.uniform(0.4, 0.8)))


def _chopper(scale: float, rng: Generator) -> Tool:
    length, reach, radius = rng.uniform(7.0, 14.0), rng.uniform(0.8, 2.2), rng.uniform(0.3, 0.5)
    carver = _tip(scale, rng, length, reach + 0.5)
    carver.wire([(-1.0, 0.0), (length - 0.6, 0.0), (length, 0.3), (length, reach)], radius)
    return _single_tip(carver, rng, _handle(scale, rng, rng.uniform(0.8, 1.9), 0.5))


def _sheath(scale: float, rng: Generator, radius: float) -> Plate:
    """Build a plastic tube or a coil of steel wire, sometimes with marks."""
    carver = Carver(-130.0, 1.0, radius, scale)
    material = (PALE, PALE, ACCENT, METAL, DARK, CLEAR)[int(rng.integers(6))]
    carver.tube(radius, 135.0, end=0.6, material=material)
    if material == METAL:
        for x in np.arange(-60.0, 0.0, rng.uniform(0.5, 0.9)):
            carver.shade_band(x, 0.14, 0.45)
    if rng.random() < 0.3:
        for x in np.arange(-40.0, 0.0, rng.uniform(3.0, 9.0)):
            carver.band(x, x + 0.8, DARK)
    carver.streaks(rng, 0.05)
    return carver.plate(0.04, rng)


def _snare(scale: float, rng: Generator) -> Tool:
    length, half, wire = rng.uniform(11.0, 26.0), rng.uniform(2.5, 8.0), rng.uniform(0.22, 0.42)
    carver = _tip(scale, rng, length, half + 0.5)
    turn = np.linspace(0.0, 2 * np.pi, 40)
    corner = rng.uniform(0.6, 1.5)  # below 1 pear-shaped, above 1 pointed
    x = 0.5 * length * (1 - np.cos(turn)) + 0.4
    y = half * np.sign(np.sin(turn)) * np.abs(np.sin(turn)) ** corner
    carver.wire([(-1.0, 0.0), *zip(x, y, strict=True)], wire, material=METAL if rng.random() < 0.8 else DARK)
    return _single_tip(carver, rng, _sheath(scale, rng, rng.uniform(1.0, 1.7)), 0.04)


def _biopsy_forceps(scale: float, rng: Generator) -> Tool:
    length, half, radius = rng.uniform(3.0, 5.5), rng.uniform(1.0, 1.6), rng.uniform(0.9, 1.4)
    carver = _tip(scale, rng, length, half)
    turn = np.linspace(0.0, np.pi, 14)
    cup = [(length * (0.5 - 0.5 * float(np.cos(t))), half * float(np.sin(t)) ** 0.7) for t in turn]
    carver.body([(-1.0, 0.0), *cup, (length, 0.0)], thick=1.2, round_=0.9)
    if rng.random() < 0.7:
        carver.ring((0.55 * length, 0.5 * half), 0.25 * half, 0.5, deep=1.0, dark=0.2)
    plate, joint = carver.plate(0.06, rng), rng.uniform(2.0, 4.5)
    neck = _tip(scale, rng, joint, radius)
    neck.tube(0.9 * radius, 1.0, end=joint, material=METAL)
    neck.pin((0.8 * joint, 0.0), 0.4, slot=False)
    return Tool(_sheath(scale, rng, radius), neck.plate(0.08, rng), (plate, plate.mirrored()), joint, solid=True)


def _balloon(scale: float, rng: Generator) -> Tool:
    length, half = rng.uniform(12.0, 26.0), rng.uniform(2.8, 6.5)
    carver = _tip(scale, rng, length + 3.0, half)
    material = CLEAR if rng.random() < 0.75 else (PALE, ACCENT)[int(rng.integers(2))]
    x, blunt = np.linspace(0.5, length, 24), rng.uniform(0.25, 0.7)
    side = 0.5 + half * np.sin(np.pi * np.linspace(0.0, 1.0, 24)) ** blunt
    carver.turned(list(zip(x, side, strict=True)), material=material)
    carver.albedo[carver.cover > 0] *= np.float32(rng.uniform(0.7, 1.2))
    carver.wire([(-1.0, 0.0), (2.0, 0.0)], 0.6, material=PALE)
    carver.wire([(length - 0.5, 0.0), (length + 2.5, 0.0)], 0.5, material=DARK)
    return _single_tip(carver, rng, _sheath(scale, rng, rng.uniform(0.9, 1.5)), 0.02)


def _injection_needle(scale: float, rng: Generator) -> Tool:
    length, radius = rng.uniform(3.0, 7.0), rng.uniform(0.25, 0.4)
    carver = _tip(scale, rng, length, 0.5)
    _cut_end(carver, length, 1.2, radius)
    return _single_tip(carver, rng, _sheath(scale, rng, rng.uniform(0.9, 1.5)), 0.04)


_BUILD: dict[str, Callable[[float, Generator], Tool]] = {
    "Keratome": _keratome, "Eye_Forceps": _eye_forceps, "Phaco_Tip": _phaco_tip, "Eye_Cannula": _eye_cannula,
    "Chopper": _chopper, "Snare": _snare, "Biopsy_Forceps": _biopsy_forceps, "Balloon": _balloon,
    "Injection_Needle": _injection_needle,
}  # fmt: skip
