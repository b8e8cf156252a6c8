"""Robotic instruments in real proportions: compact wrists nearly as wide as the shaft, held by a clevis.

As in EndoVis 2017, the clevis (the shaft's two ears) is shaft, and the body between the ears is wrist: a rounded metal
shell with drums of cable, or an open frame around one large screw. The kinds are the same as in `instruments.py`, but
outlines differ by model.
"""

from functools import lru_cache

import numpy as np
from numpy.random import Generator

from shared_components.scenes.carving import ACCENT, DARK, METAL, PALE, Carver, Plate, Point
from shared_components.scenes.instruments import EAR, KINDS, RADIUS, SHAPES, Tool
from shared_components.scenes.noise import stream

MODELS = 16
"""Models of each kind."""
_SEED = 77


@lru_cache(maxsize=96)
def wristed_tool(kind: str, scale: float, model: int) -> Tool:
    """Build one model of a kind at `scale` pixels per mm."""
    jaw, _, jaw_length, _, _ = SHAPES[kind]
    rng = stream(_SEED, KINDS.index(kind), model)
    carver = Carver(-2.0, jaw_length + 0.5, 4.5, scale)
    jaw(carver)
    carver.disc((0.0, 0.4), 1.9, thick=2.0, round_=0.8)
    plate = carver.plate(0.10, rng)
    length = rng.uniform(8.0, 11.5)
    metal = rng.uniform(0.7, 1.45)  # brightness
    sleeved = kind == "Monopolar_Curved_Scissors" and rng.random() < 0.7
    wrist = _sleeve(scale, rng, length) if sleeved else _body(kind, scale, rng, length, metal)
    coated = (METAL, METAL, METAL, DARK)[int(rng.integers(4))]
    shaft, ear = _shaft(scale, rng, metal, coated), _ear(scale, rng, metal, coated)
    return Tool(shaft, wrist, (plate, plate.mirrored()), length, ear=ear, solid=True)


def _shaft(scale: float, rng: Generator, metal: float, material: int) -> Plate:
    """Build a tube of brushed carbon with a metal sleeve that ends before the wrist's axis."""
    sleeve, end = rng.uniform(6.0, 13.0), rng.uniform(-3.2, -2.0)
    carver = Carver(-75.0, 1.0, RADIUS, scale)
    carver.tube(RADIUS, 80.0, end=end)
    carver.streaks(rng, rng.uniform(0.05, 0.22), along=int(rng.integers(40, 160)))
    carver.band(-sleeve, end, material)
    x, _ = carver.axes()
    carver.albedo[:, x > -sleeve] *= np.float32(metal)
    for ring in (-sleeve, *(-sleeve + rng.uniform(0.8, 3.0, int(rng.integers(3))))):
        carver.shade_band(ring, rng.uniform(0.15, 0.3), rng.uniform(1.2, 1.6))
    carver.shade_band(end, 0.5, 0.4)  # the wrist's own shadow
    if rng.random() < 0.5:
        carver.print_word(-sleeve - rng.uniform(12.0, 30.0), 1.8, rng)
    return carver.plate(0.09, rng)


def _ear(scale: float, rng: Generator, metal: float, material: int) -> Plate:
    """Build one of the clevis' two ears: a tongue with the pin of the wrist's axis."""
    half, tip = rng.uniform(0.85, 1.0) * EAR, rng.uniform(2.4, 3.8)
    turn = np.linspace(-np.pi / 2, np.pi / 2, 14)
    nose: list[Point] = [(tip * float(np.cos(t)), half * float(np.sin(t))) for t in turn]
    carver = Carver(-5.0, 4.2, 4.0, scale)
    outline = [(-4.5, -half), *nose, (-4.5, half)]
    carver.body(outline, thick=rng.uniform(1.6, 2.4), round_=rng.uniform(2.0, 3.2), material=material)
    carver.albedo *= np.float32(metal)
    if rng.random() < 0.7:
        carver.pin((0.2, 0.0), rng.uniform(0.9, 1.6), turn=rng.uniform(0, np.pi), slot=rng.random() < 0.4)
    return carver.plate(0.14, rng)


def _profile(rng: Generator, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return positions along a wrist and its half widths: an egg, thickest at a third to a half of the length."""
    x = np.linspace(-3.0, length + 2.2, 24)
    share = (x + 3.0) / (length + 5.2)
    top, blunt = rng.uniform(0.3, 0.55), rng.uniform(0.35, 0.6)
    bent = np.where(share < top, share / top, 1 + (share - top) / (1 - top))
    return x, rng.uniform(3.1, 3.8) * np.maximum(np.sin(np.pi * bent / 2), 0.0) ** blunt


def _body(kind: str, scale: float, rng: Generator, length: float, metal: float) -> Plate:
    """Build a rounded body of bright metal, nearly as wide as the shaft: a closed shell or an open frame."""
    carver = Carver(-3.5, length + 3.0, 5.0, scale)
    x, half = _profile(rng, length)
    lower, upper = half * rng.uniform(0.82, 1.0), half * rng.uniform(0.82, 1.0)
    outline = [*zip(x, -lower, strict=True), *zip(x[::-1], upper[::-1], strict=True)]
    for place, reach in ((rng.uniform(0.0, 1.5), 4.2), (length - rng.uniform(0.5, 1.5), 3.6)):
        aside = rng.choice((-1.0, 1.0)) * rng.uniform(0.5, 0.75) * reach
        _drum(carver, (place, aside), rng.uniform(1.5, 2.1), thick=rng.uniform(2.0, 3.4))
    carver.body(outline, thick=3.1, round_=rng.uniform(1.8, 3.2))
    if kind == "Large_Needle_Driver" or rng.random() < 0.35:
        _emboss(carver, rng, length)
    else:
        _open(carver, rng, length)
    if kind == "Maryland_Bipolar_Forceps":
        for y in (-1.5, 1.5):
            carver.disc((length + 0.8, y), 1.4, thick=3.0, round_=0.8, material=(ACCENT, PALE)[int(rng.integers(2))])
    carver.albedo *= np.float32(metal)
    return carver.plate(rng.uniform(0.10, 0.22), rng)


def _drum(carver: Carver, centre: Point, radius: float, *, thick: float) -> None:
    """Add a drum of cable: rings around a pin."""
    carver.disc(centre, radius, thick=thick, round_=0.6)
    for share in (0.85, 0.6):
        carver.ring(centre, share * radius, 0.16, deep=0.5, dark=0.45)
    carver.pin(centre, 0.4 * radius, slot=False)


def _emboss(carver: Carver, rng: Generator, length: float) -> None:
    """Add dimples, a ridge and sometimes a drum of cable to a closed shell."""
    for place in rng.uniform(0.25, 0.75, int(rng.integers(1, 4))):
        carver.ring((place * length, rng.uniform(-1.2, 1.2)), rng.uniform(0.35, 0.7), 0.2, deep=0.4, dark=0.6)
    side = rng.choice((-1.0, 1.0))
    carver.groove((0.5, 1.6 * side), (length, rng.uniform(1.0, 2.2) * side), 0.3, dark=0.5)
    if rng.random() < 0.5:
        _drum(carver, (rng.uniform(0.6, 0.85) * length, -1.2 * side), rng.uniform(1.0, 1.6), thick=3.4)


def _open(carver: Carver, rng: Generator, length: float) -> None:
    """Add slots for cables around one large drum."""
    middle = rng.uniform(0.35, 0.6) * length
    for side in (-1.0, 1.0):
        low, high = side * rng.uniform(0.7, 1.1), side * rng.uniform(1.8, 2.5)
        slot = [(0.5, low), (length - 0.5, 0.7 * low), (length - 1.5, 0.8 * high), (1.5, high)]
        carver.sink(slot, deep=1.4, dark=0.2)
        for share in (0.3, 0.7):
            y = low + share * (high - low)
            cable = [(0.0, y - 0.2), (length, 0.8 * y - 0.2), (length, 0.8 * y + 0.2), (0.0, y + 0.2)]
            carver.body(cable, thick=2.6, round_=0.3)
    _drum(carver, (middle, rng.uniform(-0.6, 0.6)), rng.uniform(1.6, 2.4), thick=3.6)
    carver.pin((length, 0.0), rng.uniform(1.1, 1.7), turn=rng.uniform(0, np.pi))


def _sleeve(scale: float, rng: Generator, length: float) -> Plate:
    """Build the insulating cover of the scissors' wrist: a soft cone."""
    carver = Carver(-3.5, length + 3.0, 5.0, scale)
    end = rng.uniform(1.4, 2.2)
    cone = [(-3.0, 3.3), (0.0, 3.9), (0.55 * length, 3.6), (length, 0.5 * (3.4 + end)), (length + 2.0, end)]
    carver.turned(cone, material=(ACCENT, PALE, DARK)[int(rng.integers(3))])
    for x in np.arange(1.0, rng.uniform(2.0, 0.6 * length), 1.2):
        carver.groove((x, -3.8), (x, 3.8), 0.3, dark=0.7)
    return carver.plate(0.03, rng)
