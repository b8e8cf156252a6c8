"""Straight laparoscopic instruments, as every hospital has them: a rigid tube, a short joint, and jaws or a tip.

Each kind comes in several models that differ in length, width, curve, windows and teeth, as makers' catalogues do.
Parts are labelled as a robot's: the tube is shaft, the joint is wrist, and what touches tissue is clasper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shared_components.scenes.carving import ACCENT, DARK, METAL, PALE, Carver, Plate, Point
from shared_components.scenes.instruments import Tool
from shared_components.scenes.noise import stream

Array = np.ndarray

KINDS = ("Grasper", "Scissors", "Hook", "Clip_Applier", "Stapler", "Suction")
MODELS = 8
"""Models of each kind."""
_LENGTH = 130.0  # of the tube, mm: it leaves the picture at the trocar
_WIDEST = {"Grasper": 1.0, "Scissors": 0.8, "Hook": 0.0, "Clip_Applier": 0.5, "Stapler": 0.45, "Suction": 0.0}
FLEX = {"Stapler": 0.5}
"""How far a kind's joint bends, 1 as a robot's wrist; the others do not."""


def widest(kind: str) -> float:
    """Return the largest opening of a kind's jaws in radians, whatever the model."""
    return _WIDEST[kind]


@dataclass(frozen=True)
class Build:
    """Proportions of straight instruments.

    Attributes:
        joint: breadth of a joint, (least, most) in breadths of the tube.
        longer: factor on a joint's length; collar: on that of the tube's metal end, which is shaft.
        thin: least factor on all sizes of every third model; 1: all are as thick as makers' usual ones.
        solid: as of `Tool`; seed: of the models' random streams, beside the kind and the model.
    """

    joint: tuple[float, float] = (0.6, 0.9)
    longer: float = 1.0
    collar: float = 1.0
    thin: float = 1.0
    solid: bool = False
    seed: tuple[int, ...] = ()


SLIM = Build()
FULL = Build(joint=(0.85, 1.04), longer=1.5, collar=0.3, thin=0.4, solid=True, seed=(78,))
"""Joints as wide as the tube, as most real ones are, and 3 mm instruments."""


@lru_cache(maxsize=128)
def straight_tool(kind: str, scale: float, model: int, build: Build = SLIM) -> Tool:
    """Carve the plates of one model of a kind at `scale` pixels per mm."""
    rng = stream(*build.seed, KINDS.index(kind), model)
    made = replace(_BUILD[kind](scale, rng, build), solid=build.solid)
    return made.shrunk(rng.uniform(build.thin, 0.8)) if build.thin < 1.0 and model % 3 == 0 else made


def _tube(scale: float, rng: np.random.Generator, radius: float, collar: float) -> Plate:
    """A tube with a metal collar of `collar` mm at its end, and now and then rings or a printed word."""
    carver = Carver(-_LENGTH, 1.5, radius, scale)
    carver.tube(radius, _LENGTH + 5.0, end=1.0)
    if collar > 0:
        carver.band(-collar, 1.0, METAL)
        carver.shade_band(-collar, 0.3, 0.5)
    if rng.random() < 0.4:
        start = -rng.uniform(6.0, 30.0)
        for i in range(int(rng.integers(1, 4))):
            carver.band(start - 4.0 * i, start - 4.0 * i + rng.uniform(0.8, 2.2), PALE)
    if rng.random() < 0.5:
        carver.print_word(-rng.uniform(14.0, 45.0), rng.uniform(0.6, 1.4) * radius, rng)
    carver.streaks(rng, 0.10)
    return carver.plate(0.05, rng)


def _joint(scale: float, rng: np.random.Generator, length: float, half: float, material: int = METAL) -> Plate:
    """A forked joint with a rivet."""
    carver = Carver(-1.5, length + 1.5, half + 0.6, scale)
    narrow = half * rng.uniform(0.65, 0.95)
    below = [(-1.5, -half), (length * 0.5, -half), (length + 1.0, -narrow)]
    above = [(x, -y) for x, y in below[::-1]]
    carver.body([*below, *above], thick=half, round_=half * 0.9, material=material)
    if rng.random() < 0.6:
        carver.groove((length * 0.2, 0.0), (length, 0.0), half * 0.4, dark=0.3)
    carver.pin((length, 0.0), half * rng.uniform(0.3, 0.5), turn=rng.uniform(0, np.pi), slot=False)
    return carver.plate(0.06, rng)


def _blade(carver: Carver, length: float, bow: Array, width: Array, thick: float, material: int = METAL) -> None:
    """Raise a jaw whose closing edge follows `bow` (mm) of breadth `width` (mm), both sampled from 0 to `length`."""
    x = np.linspace(0, length, len(bow))
    edge: list[Point] = [*zip(x, bow, strict=True), *zip(x[::-1], (bow + width)[::-1], strict=True)]
    carver.body([(-1.0, -0.2), *edge, (-1.0, 1.4)], thick=thick, round_=0.8 * thick, material=material)


def _pair(plate: Plate, shaft: Plate, wrist: Plate, joint: float) -> Tool:
    return Tool(shaft, wrist, (plate, plate.mirrored()), joint)


def _grasper(scale: float, rng: np.random.Generator, build: Build) -> Tool:
    length, radius = rng.uniform(10.0, 24.0), rng.uniform(2.3, 4.8)
    time = np.linspace(0, 1, 16)
    breadth, taper = rng.uniform(1.9, 3.6), rng.uniform(0.35, 1.0)
    bow = rng.choice((0.0, 0.0, 1.6)) * np.sin(np.pi * time) * rng.uniform(0.4, 1.0)
    width = breadth * (1 - (1 - taper) * time**1.5)
    width[-1] *= 0.5
    carver = Carver(-2.0, length + 0.5, 5.0, scale)
    _blade(carver, length, bow, width, thick=rng.uniform(1.6, 2.6))
    if taper > 0.6 and rng.random() < 0.6:
        low, high = 0.3 * breadth, 0.72 * breadth
        shares = ((0.3, low), (0.85, low), (0.88, high * 0.9), (0.85, high), (0.3, high))
        carver.sink([(share * length, y) for share, y in shares], deep=1.4, dark=0.2)
    for x in np.arange(0.25 * length, 0.97 * length, rng.uniform(0.6, 1.2)):
        y = float(np.interp(x / length, time, bow))
        carver.groove((x, y), (x, y + 0.5), 0.3)
    joint = build.longer * rng.uniform(3.0, 8.0)
    wrist = _joint(scale, rng, joint, radius * rng.uniform(*build.joint))
    plate = carver.plate(0.07, rng)
    return _pair(plate, _tube(scale, rng, radius, build.collar * rng.uniform(0, 5)), wrist, joint)


def _scissors(scale: float, rng: np.random.Generator, build: Build) -> Tool:
    length, radius = rng.uniform(10.0, 18.0), rng.uniform(2.3, 3.2)
    time = np.linspace(0, 1, 14)
    bow = rng.uniform(0.0, 2.5) * time**2 - 0.1
    width = np.interp(time, [0, 0.2, 0.7, 1.0], [2.2, 2.5, 1.8, 0.4]) * rng.uniform(0.85, 1.3)
    carver = Carver(-2.0, length + 0.5, 5.5, scale)
    _blade(carver, length, bow, width, thick=1.4)
    joint = build.longer * rng.uniform(3.0, 7.0)
    wrist = _joint(scale, rng, joint, radius * rng.uniform(*build.joint), METAL if rng.random() < 0.6 else ACCENT)
    plate = carver.plate(0.05, rng)
    return _pair(plate, _tube(scale, rng, radius, build.collar * rng.uniform(0, 3)), wrist, joint)


def _hook(scale: float, rng: np.random.Generator, build: Build) -> Tool:
    length, radius, reach = rng.uniform(6.0, 14.0), rng.uniform(2.3, 2.9), rng.uniform(2.5, 5.0)
    carver = Carver(-2.0, length + 1.5, reach + 1.5, scale)
    wire = rng.uniform(0.45, 0.8)
    bend = [(-2.0, -wire), (length + wire, -wire), (length + wire, reach), (length - wire, reach)]
    carver.body([*bend, (length - wire, wire), (-2.0, wire)], thick=1.0, round_=wire)
    sheath = rng.uniform(2.0, 8.0)
    cover = Carver(-1.5, sheath + 1.0, radius + 0.4, scale)
    end = 0.55 * radius
    cone = [(-1.5, -radius), (0.7 * sheath, -0.9 * radius), (sheath, -end)]
    cover.body(
        [*cone, (sheath, end), (0.7 * sheath, 0.9 * radius), (-1.5, radius)],
        thick=radius,
        round_=radius,
        material=(PALE, ACCENT, DARK)[int(rng.integers(3))],
    )
    shaft = _tube(scale, rng, radius, 0.0)
    return Tool(shaft, cover.plate(0.03, rng), (carver.plate(0.06, rng),), sheath)


def _clip_applier(scale: float, rng: np.random.Generator, build: Build) -> Tool:
    length, radius = rng.uniform(8.0, 14.0), rng.uniform(3.2, 5.0)
    time = np.linspace(0, 1, 16)
    bow = np.where(time > 0.85, 0.1, 0.9)
    carver = Carver(-2.0, length + 0.5, 5.0, scale)
    _blade(carver, length, bow, np.where(time > 0.85, 2.4, 1.6) * rng.uniform(0.9, 1.3), thick=1.8)
    carver.groove((0.3 * length, 1.5), (0.8 * length, 1.5), 0.4)
    joint = build.longer * rng.uniform(5.0, 10.0)
    wrist = _joint(scale, rng, joint, radius * max(0.7, build.joint[0]))
    plate = carver.plate(0.06, rng)
    return _pair(plate, _tube(scale, rng, radius, build.collar * rng.uniform(0, 8)), wrist, joint)


def _stapler(scale: float, rng: np.random.Generator, build: Build) -> Tool:
    length, radius = rng.uniform(30.0, 48.0), rng.uniform(5.0, 6.5)
    material = (METAL, PALE, ACCENT)[int(rng.integers(3))]
    plates = []
    for made_of in (METAL, material):
        carver = Carver(-2.0, length + 0.5, 7.0, scale)
        half = radius * 0.9
        tip = [(length, 0.0), (length, 0.5 * half), (length * 0.93, half)]
        outline = [(-2.0, 0.0), *tip, (2.0, half), (-2.0, 0.7 * half)]
        carver.body(outline, thick=3.0, round_=2.2, material=made_of)
        carver.groove((4.0, 0.5 * half), (length * 0.9, 0.5 * half), 0.7)
        for x in np.arange(5.0, length * 0.9, 2.0):
            carver.groove((x, 0.2), (x + 1.0, 0.2), 0.3)
        plates.append(carver.plate(0.04, rng))
    joint = rng.uniform(8.0, 14.0)
    wrist = _joint(scale, rng, joint, radius * max(0.8, build.joint[0]))
    shaft = _tube(scale, rng, radius, build.collar * rng.uniform(2, 12))
    return Tool(shaft, wrist, (plates[0], plates[1].mirrored()), joint)


def _suction(scale: float, rng: np.random.Generator, build: Build) -> Tool:
    length, radius = rng.uniform(9.0, 20.0), rng.uniform(2.3, 4.5)
    carver = Carver(-1.0, length + 0.5, radius, scale)
    carver.tube(radius * 0.98, 1.0, end=length, material=METAL)
    for x in np.arange(2.0, length - 1.0, rng.uniform(1.8, 3.0)):
        y = rng.uniform(-0.5, 0.5) * radius
        turn = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        hole = rng.uniform(0.35, 0.6)
        carver.sink([(x + hole * np.cos(t), y + hole * np.sin(t)) for t in turn], deep=1.0, dark=0.1)
    return Tool(_tube(scale, rng, radius, 0.0), None, (carver.plate(0.05, rng),), 0.0)


_BUILD: dict[str, Callable[[float, np.random.Generator, Build], Tool]] = dict(
    zip(KINDS, (_grasper, _scissors, _hook, _clip_applier, _stapler, _suction), strict=True)
)
