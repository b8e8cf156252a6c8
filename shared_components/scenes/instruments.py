"""Parts of robotic instruments as height maps: shaft, wrist and jaws of four tools; straight ones are next door.

Each part is a plate seen face-on with its own relief, drawn once in millimetres; `raster.py` places the plates
in space. x runs along the part from its joint to the tip, y across, the relief towards the viewer.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shared_components.scenes.carving import ACCENT, DARK, METAL, Carver, Plate
from shared_components.scenes.noise import stream

BACKGROUND, SHAFT, WRIST, CLASPER = range(4)
RADIUS = 4.0  # of the shaft, mm
EARS, EAR = 3.2, 3.5  # mm from the axis of a shaft to an ear of its clevis; an ear's half breadth

MODELS = 4  # of each kind: they differ in wear and in how their screws are turned
KINDS = ("Large_Needle_Driver", "Prograsp_Forceps", "Monopolar_Curved_Scissors", "Maryland_Bipolar_Forceps")


@dataclass(frozen=True)
class Tool:
    """The plates of one tool and the distances between its joints (mm).

    Attributes:
        wrist: None where the tip sits on the shaft itself.
        jaws: two that open, or one tip.
        ear: of a clevis on both sides of the wrist, part of the shaft; None: the shaft holds the wrist by itself.
        solid: whether wrist and jaws keep most of their breadth however they are rolled.
    """

    shaft: Plate
    wrist: Plate | None
    jaws: tuple[Plate, ...]
    wrist_length: float
    ear: Plate | None = None
    solid: bool = False

    def stained(self, rng: np.random.Generator, share: float) -> "Tool":
        """Return the tool with blood on about `share` of its metal."""
        if share <= 0.0:
            return self
        wrist = None if self.wrist is None else self.wrist.stained(rng, share)
        shaft = self.shaft.stained(rng, share)
        jaws = tuple(jaw.stained(rng, share) for jaw in self.jaws)
        ear = None if self.ear is None else self.ear.stained(rng, share)
        return replace(self, shaft=shaft, wrist=wrist, jaws=jaws, ear=ear)

    def shrunk(self, factor: float) -> "Tool":
        """Return the tool with all its lengths times `factor`."""
        jaws = tuple(jaw.shrunk(factor) for jaw in self.jaws)
        wrist, ear = (None if plate is None else plate.shrunk(factor) for plate in (self.wrist, self.ear))
        shaft, length = self.shaft.shrunk(factor), factor * self.wrist_length
        return replace(self, shaft=shaft, wrist=wrist, jaws=jaws, wrist_length=length, ear=ear)

    def dressed(self, *, shaft: int = DARK, tip: int = METAL) -> "Tool":
        """Return the tool with its shaft and its jaws of other materials."""
        jaws = tuple(jaw.remade(METAL, tip) for jaw in self.jaws)
        return replace(self, shaft=self.shaft.remade(DARK, shaft), jaws=jaws)


def _shaft(scale: float, rng: np.random.Generator, sleeve: float) -> Plate:
    """A dark tube with a metal sleeve of `sleeve` mm that ends in a fork around the wrist."""
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


def _wrist(scale: float, rng: np.random.Generator, kind: str) -> Plate:
    """A waisted link between two pulleys; the scissors wear an insulating sleeve over it."""
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
    carver.sink([(3.0, -2.0), (6.5, -1.7), (6.5, -0.8), (3.0, -1.0)], deep=1.0, dark=0.3)
    carver.sink([(3.0, 2.0), (6.5, 1.7), (6.5, 0.8), (3.0, 1.0)], deep=1.0, dark=0.3)
    carver.pin((9.0, 0.0), 1.7, turn=rng.uniform(0, np.pi))
    carver.pin((4.8, 0.0), 0.7, turn=rng.uniform(0, np.pi))
    if kind == "Maryland_Bipolar_Forceps":
        carver.disc((11.0, -1.2), 1.3, thick=3.0, round_=0.8, material=ACCENT)
        carver.disc((11.0, 1.2), 1.3, thick=3.0, round_=0.8, material=ACCENT)
    return carver.plate(0.10, rng)


def _needle_driver_jaw(carver: Carver) -> None:
    carver.body(
        [(-1.5, -0.6), (-0.5, 2.2), (2.5, 2.6), (6.0, 2.1), (9.6, 1.3), (10.2, 0.7), (10.2, 0.0), (1.0, -0.2)],
        thick=2.0,
        round_=1.1,
    )
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


def _scissor_jaw(carver: Carver) -> None:
    x = np.linspace(0, 13.5, 14)
    bow = 0.022 * (x - 1.0) ** 2 - 0.1
    width = np.interp(x, [0, 2, 9, 13.5], [2.1, 2.3, 1.5, 0.25])
    edge = list(zip(x, bow, strict=True)) + list(zip(x[::-1], (bow + width)[::-1], strict=True))
    carver.body([(-1.2, 0.0), *edge, (-1.2, 1.8)], thick=1.5, round_=0.9)
    for i in range(2, 13):
        carver.groove((x[i], bow[i] + 0.1), (x[i + 1], bow[i + 1] + 0.1), 0.22, dark=1.5)


def _maryland_jaw(carver: Carver) -> None:
    x = np.linspace(0, 15.0, 14)
    bow = 1.3 * np.sin(np.pi * np.clip((x - 2) / 13.5, 0, 1)) * 0.6
    width = np.interp(x, [0, 3, 10, 15], [2.0, 1.8, 1.25, 0.7])
    edge = list(zip(x, bow, strict=True)) + list(zip(x[::-1], (bow + width)[::-1], strict=True))
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


def widest(kind: str) -> float:
    """Return the largest opening of a kind's jaws in radians."""
    return SHAPES[kind][3]


@lru_cache(maxsize=32)
def robotic_tool(kind: str, scale: float, model: int) -> Tool:
    """Carve the plates of one kind at `scale` pixels per mm; every model has the same outlines and distances."""
    jaw, wrist_length, jaw_length, _, sleeve = SHAPES[kind]
    rng = stream(KINDS.index(kind), model)
    carver = Carver(-2.0, jaw_length + 0.5, 4.5, scale)
    jaw(carver)
    plate = carver.plate(0.08, rng)
    return Tool(_shaft(scale, rng, sleeve), _wrist(scale, rng, kind), (plate, plate.mirrored()), wrist_length)
