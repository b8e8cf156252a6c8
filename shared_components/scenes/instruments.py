"""Robotic instruments as height maps: shaft, wrist and jaws of four tools.

Each part is a plate with relief, drawn once in millimetres; `raster.py` places the plates in space. x runs along the
part from its joint to the tip, y across, the relief towards the viewer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.random import Generator

from shared_components.scenes.carving import ACCENT, DARK, METAL, Carver, Plate, Point
from shared_components.scenes.noise import stream

BACKGROUND, SHAFT, WRIST, CLASPER = range(4)
RADIUS = 4.0  # shaft radius in mm
EARS, EAR = 3.2, 3.5  # distance of a clevis ear from the shaft's axis and half its breadth, mm

MODELS = 4  # models per kind, which differ in wear and in the turn of their screws
KINDS = ("Large_Needle_Driver", "Prograsp_Forceps", "Monopolar_Curved_Scissors", "Maryland_Bipolar_Forceps")


@dataclass(frozen=True)
class Tool:
    shaft: Plate
    wrist: Plate | None  # None if the tip is attached to the shaft
    jaws: tuple[Plate, ...]  # two plates that open, or one tip
    wrist_length: float  # distance between the two joints in mm
    ear: Plate | None = None  # ear of a clevis on both sides of the wrist, part of the shaft; None without a clevis
    solid: bool = False  # whether wrist and jaws keep most of their breadth when they roll

    def _changed(self, change: Callable[[Plate], Plate]) -> "Tool":
        """Return the tool with each plate changed, in the order wrist, shaft, jaws, ear."""
        wrist = self.wrist and change(self.wrist)
        shaft, jaws = change(self.shaft), tuple(map(change, self.jaws))
        return replace(self, wrist=wrist, shaft=shaft, jaws=jaws, ear=self.ear and change(self.ear))

    def stained(self, rng: Generator, share: float) -> "Tool":
        """Return the tool with blood on about `share` of its metal."""
        return self._changed(lambda plate: plate.stained(rng, share)) if share > 0.0 else self

    def shrunk(self, factor: float) -> "Tool":
        """Return the tool with all lengths multiplied by `factor`."""
        return replace(self._changed(lambda plate: plate.shrunk(factor)), wrist_length=factor * self.wrist_length)

    def dressed(self, *, shaft: int = DARK, tip: int = METAL) -> "Tool":
        """Return the tool with a shaft and jaws of other materials."""
        jaws = tuple(jaw.remade(METAL, tip) for jaw in self.jaws)
        return replace(self, shaft=self.shaft.remade(DARK, shaft), jaws=jaws)


def _shaft(scale: float, rng: Generator, sleeve: float) -> Plate:
    """Build a dark tube with a metal sleeve of `sleeve` mm that ends in a fork around the wrist."""
    carver = Carver(-75.0, 4.0, RADIUS, scale)
    carver.tube(RADIUS, 80.0)
    carver.band(-sleeve, 0.0, METAL)
    carver.streaks(rng, 0.06)
    for ring in (-sleeve, -sleeve - 1.2, -sleeve + 1.0):
        carver.shade_band(ring, 0.16, 0.45)
    carver.shade_band(-sleeve - 0.6, 0.35, 1.5)
    if rng.random() < 0.5:
        carver.print_word(-sleeve - rng.uniform(12.0, 30.0), 1.8, rng)
    fork = [(-1.0, -2.6), (2.2, -2.4), (3.4, -1.2), (3.4, 1.2), (2.2, 2.4), (-1.0, 2.6)]
    carver.body(fork, thick=RADIUS + 0.2, round_=0.8)
    carver.pin((1.4, 0.0), 1.3, turn=rng.uniform(0, np.pi))
    carver.groove((-sleeve + 2.0, 2.0), (-1.5, 2.0), 0.4)
    return carver.plate(0.07, rng)


def _wrist(scale: float, rng: Generator, kind: str) -> Plate:
    """Build a waisted link between two pulleys; on scissors it has an insulating sleeve."""
    carver = Carver(-2.0, 12.5, 4.2, scale)
    link = [(-1.5, -2.6), (2.0, -3.3), (6.0, -3.0), (10.0, -2.4), (10.0, 2.4), (6.0, 3.0), (2.0, 3.3), (-1.5, 2.6)]
    carver.body(link, thick=2.6, round_=1.4)
    carver.disc((1.0, 0.0), 3.2, thick=3.0, round_=1.2)
    carver.disc((9.0, 0.0), 2.9, thick=3.2, round_=1.0)
    if kind == "Monopolar_Curved_Scissors":
        cone = [
            (-1.0, -3.7), (5.0, -3.6), (11.0, -2.5), (12.0, -1.6), (12.0, 1.6), (11.0, 2.5), (5.0, 3.6), (-1.0, 3.7),
        ]  # fmt: skip
        carver.body(cone, thick=3.8, round_=3.0, material=ACCENT)
        for x in (2.0, 3.2, 4.4):
            carver.groove((x, -3.6), (x, 3.6), 0.35, dark=0.7)
        return carver.plate(0.03, rng)
    for y in (-1.0, 1.0):
        carver.sink([(3.0, 2.0 * y), (6.5, 1.7 * y), (6.5, 0.8 * y), (3.0, y)], deep=1.0, dark=0.3)
    for x, radius in ((9.0, 1.7), (4.8, 0.7)):
        carver.pin((x, 0.0), radius, turn=rng.uniform(0, np.pi))
    if kind == "Maryland_Bipolar_Forceps":
        for y in (-1.2, 1.2):
            carver.disc((11.0, y), 1.3, thick=3.0, round_=0.8, material=ACCENT)
    return carver.plate(0.10, rng)


def _needle_driver_jaw(carver: Carver) -> None:
    outline = [(-1.5, -0.6), (-0.5, 2.2), (2.5, 2.6), (6.0, 2.1), (9.6, 1.3), (10.2, 0.7), (10.2, 0.0), (1.0, -0.2)]
    carver.body(outline, thick=2.0, round_=1.1)
    carver.body([(3.0, 0.0), (10.0, 0.0), (10.0, 0.6), (3.0, 0.9)], thick=2.1, round_=0.2)
    for x in np.arange(3.4, 10.0, 0.7):
        carver.groove((x, 0.0), (x + 0.5, 0.8), 0.26)
    carver.pin((0.4, 0.8), 1.0)


def _prograsp_jaw(carver: Carver) -> None:
    outline = [
        (-1.5, -0.6), (-0.5, 2.0), (3.5, 1.9), (5.0, 2.9), (15.5, 2.9), (17.0, 2.2), (17.4, 1.0), (17.2, 0.0),
        (4.0, 0.0), (1.0, -0.3),
    ]  # fmt: skip
    carver.body(outline, thick=1.8, round_=0.7)
    carver.sink([(6.0, 0.9), (15.4, 0.9), (15.8, 1.5), (15.4, 2.1), (6.0, 2.1), (5.6, 1.5)], deep=1.6, dark=0.18)
    for x in np.arange(5.0, 17.0, 0.8):
        carver.groove((x, 0.0), (x, 0.5), 0.32)


def jaw_outline(x: np.ndarray, bow: np.ndarray, width: np.ndarray) -> list[Point]:
    """Return the outline between a closing edge `bow` and the back of a jaw, sampled at `x`; all in mm."""
    return [*zip(x, bow, strict=True), *zip(x[::-1], (bow + width)[::-1], strict=True)]


def _scissor_jaw(carver: Carver) -> None:
    x = np.linspace(0, 13.5, 14)
    bow = 0.022 * (x - 1.0) ** 2 - 0.1
    edge = jaw_outline(x, bow, np.interp(x, [0, 2, 9, 13.5], [2.1, 2.3, 1.5, 0.25]))
    carver.body([(-1.2, 0.0), *edge, (-1.2, 1.8)], thick=1.5, round_=0.9)
    for i in range(2, 13):
        carver.groove((x[i], bow[i] + 0.1), (x[i + 1], bow[i + 1] + 0.1), 0.22, dark=1.5)


def _maryland_jaw(carver: Carver) -> None:
    x = np.linspace(0, 15.0, 14)
    bow = 1.3 * np.sin(np.pi * np.clip((x - 2) / 13.5, 0, 1)) * 0.6
    edge = jaw_outline(x, bow, np.interp(x, [0, 3, 10, 15], [2.0, 1.8, 1.25, 0.7]))
    carver.body([(-1.2, -0.3), *edge, (-1.2, 1.8)], thick=1.7, round_=0.8)
    for i in range(5, 13):
        carver.groove((x[i], bow[i]), (x[i] + 0.05, bow[i] + 0.7), 0.3)


# kind: (jaw, wrist length, jaw length, widest opening in radians, metal sleeve of the shaft in mm)
SHAPES = {
    "Large_Needle_Driver": (_needle_driver_jaw, 9.0, 10.2, 0.9, 9.0),
    "Prograsp_Forceps": (_prograsp_jaw, 9.0, 17.4, 0.8, 12.0),
    "Monopolar_Curved_Scissors": (_scissor_jaw, 11.0, 13.5, 0.8, 6.0),
    "Maryland_Bipolar_Forceps": (_maryland_jaw, 10.0, 15.0, 0.9, 7.0),
}


@lru_cache(maxsize=32)
def robotic_tool(kind: str, scale: float, model: int) -> Tool:
    """Build one model of a kind at `scale` pixels per mm; all models have the same outlines and lengths."""
    jaw, wrist_length, jaw_length, _, sleeve = SHAPES[kind]
    rng = stream(KINDS.index(kind), model)
    carver = Carver(-2.0, jaw_length + 0.5, 4.5, scale)
    jaw(carver)
    plate = carver.plate(0.08, rng)
    return Tool(_shaft(scale, rng, sleeve), _wrist(scale, rng, kind), (plate, plate.mirrored()), wrist_length)
