"""Straight laparoscopic instruments: a rigid tube, a short joint, and jaws or a tip.

Models of a kind differ in length, width, curve, windows and teeth, as in makers' catalogues. Labels are as for a robot:
the tube is shaft, the joint is wrist, and jaws or tip are clasper.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.random import Generator

from shared_components.scenes.carving import ACCENT, DARK, METAL, PALE, Carver, Plate, circle
from shared_components.scenes.instruments import Tool, jaw_outline
from shared_components.scenes.noise import stream

Array = np.ndarray

KINDS = ("Grasper", "Scissors", "Hook", "Clip_Applier", "Stapler", "Suction")
MODELS = 8
"""Models of each kind."""
_LENGTH = 130.0  # tube in mm, so that it leaves the picture at the trocar
WIDEST = {"Grasper": 1.0, "Scissors": 0.8, "Clip_Applier": 0.5, "Stapler": 0.45}
"""Largest opening of a kind's jaws in radians; other kinds have one tip."""
FLEX = {"Stapler": 0.5}
"""Bending of a kind's joint, relative to a robot's wrist; other joints are stiff."""


@dataclass(frozen=True)
class Build:
    """Proportions of straight instruments."""

    joint: tuple[float, float] = (0.6, 0.9)  # breadth of the joint, (minimum, maximum) in breadths of the tube
    longer: float = 1.0  # factor of the joint's length
    collar: float = 1.0  # factor of the length of the tube's metal end, which is shaft
    thin: float = 1.0  # minimum factor of all sizes of every third model; 1: all models have the usual size
    solid: bool = False  # see `Tool`
    seed: tuple[int, ...] = ()  # start of the models' random seed, before kind and model


SLIM = Build()
FULL = Build(joint=(0.85, 1.04), longer=1.5, collar=0.3, thin=0.4, solid=True, seed=(78,))
"""Real proportions: joints as wide as the tube, and 3 mm instruments."""


@lru_cache(maxsize=128)
def straight_tool(kind: str, scale: float, model: int, build: Build = SLIM) -> Tool:
    """Build one model of a kind at `scale` pixels per mm."""
    rng = stream(*build.seed, KINDS.index(kind), model)
    made = replace(_BUILD[kind](scale, rng, build), solid=build.solid)
    return made.shrunk(rng.uniform(build.thin, 0.8)) if build.thin < 1.0 and model % 3 == 0 else made


def _tube(scale: float, rng: Generator, radius: float, collar: float) -> Plate:
    """Build a tube with a metal collar of `collar` mm at its end, sometimes with rings or a printed word."""
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


def _joint(scale: float, rng: Generator, length: float, half: float, material: int = METAL) -> Plate:
    carver = Carver(-1.5, length + 1.5, half + 0.6, scale)
    narrow = half * rng.uniform(0.65, 0.95)
    below = [(-1.5, -half), (length * 0.5, -half), (length + 1.0, -narrow)]
    carver.body([*below, *((x, -y) for x, y in below[::-1])], thick=half, round_=half * 0.9, material=material)
    if rng.random() < 0.6:
        carver.groove((length * 0.2, 0.0), (length, 0.0), half * 0.4, dark=0.3)
    carver.pin((length, 0.0), half * rng.uniform(0.3, 0.5), turn=rng.uniform(0, np.pi), slot=False)
    return carver.plate(0.06, rng)


def _blade(carver: Carver, length: float, bow: Array, width: Array, thick: float) -> None:
    """Raise a jaw with closing edge `bow` and breadth `width`, both in mm and sampled from 0 to `length`."""
    edge = jaw_outline(np.linspace(0, length, len(bow)), bow, width)
    carver.body([(-1.0, -0.2), *edge, (-1.0, 1.4)], thick=thick, round_=0.8 * thick)


def _pair(plate: Plate, shaft: Plate, wrist: Plate, joint: float) -> Tool:
    return Tool(shaft, wrist, (plate, plate.mirrored()), joint)


def _grasper(scale: float, rng: Generator, build: Build) -> Tool:
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
    return _pair(carver.plate(0.07, rng), _tube(scale, rng, radius, build.collar * rng.uniform(0, 5)), wrist, joint)


def _scissors(scale: float, rng: Generator, build: Build) -> Tool:
    length, radius = rng.uniform(10.0, 18.0), rng.uniform(2.3, 3.2)
    time = np.linspace(0, 1, 14)
    bow = rng.uniform(0.0, 2.5) * time**2 - 0.1
    width = np.interp(time, [0, 0.2, 0.7, 1.0], [2.2, 2.5, 1.8, 0.4]) * rng.uniform(0.85, 1.3)
    carver = Carver(-2.0, length + 0.5, 5.5, scale)
    _blade(carver, length, bow, width, thick=1.4)
    joint = build.longer * rng.uniform(3.0, 7.0)
    wrist = _joint(scale, rng, joint, radius * rng.uniform(*build.joint), METAL if rng.random() < 0.6 else ACCENT)
    return _pair(carver.plate(0.05, rng), _tube(scale, rng, radius, build.collar * rng.uniform(0, 3)), wrist, joint)


def _hook(scale: float, rng: Generator, build: Build) -> Tool:
    length, radius, reach = rng.uniform(6.0, 14.0), rng.uniform(2.3, 2.9), rng.uniform(2.5, 5.0)
    carver = Carver(-2.0, length + 1.5, reach + 1.5, scale)
    wire = rng.uniform(0.45, 0.8)
    bend = [(-2.0, -wire), (length + wire, -wire), (length + wire, reach), (length - wire, reach)]
    carver.body([*bend, (length - wire, wire), (-2.0, wire)], thick=1.0, round_=wire)
    sheath = rng.uniform(2.0, 8.0)
    cover = Carver(-1.5, sheath + 1.0, radius + 0.4, scale)
    below = [(-1.5, -radius), (0.7 * sheath, -0.9 * radius), (sheath, -0.55 * radius)]
    outline = [*below, *((x, -y) for x, y in below[::-1])]
    cover.body(outline, thick=radius, round_=radius, material=(PALE, ACCENT, DARK)[int(rng.integers(3))])
    return Tool(_tube(scale, rng, radius, 0.0), cover.plate(0.03, rng), (carver.plate(0.06, rng),), sheath)


def _clip_applier(scale: float, rng: Generator, build: Build) -> Tool:
    length, radius = rng.uniform(8.0, 14.0), rng.uniform(3.2, 5.0)
    time = np.linspace(0, 1, 16)
    bow = np.where(time > 0.85, 0.1, 0.9)
    carver = Carver(-2.0, length + 0.5, 5.0, scale)
    _blade(carver, length, bow, np.where(time > 0.85, 2.4, 1.6) * rng.uniform(0.9, 1.3), thick=1.8)
    carver.groove((0.3 * length, 1.5), (0.8 * length, 1.5), 0.4)
    joint = build.longer * rng.uniform(5.0, 10.0)
    wrist = _joint(scale, rng, joint, radius * max(0.7, build.joint[0]))
    return _pair(carver.plate(0.06, rng), _tube(scale, rng, radius, build.collar * rng.uniform(0, 8)), wrist, joint)


def _stapler(scale: float, rng: Generator, build: Build) -> Tool:
    length, radius = rng.uniform(30.0, 48.0), rng.uniform(5.0, 6.5)
    material = (METAL, PALE, ACCENT)[int(rng.integers(3))]
    plates = []
    for made_of in (METAL, material):
        carver = Carver(-2.0, length + 0.5, 7.0, scale)
        half = radius * 0.9
        tip = [(length, 0.0), (length, 0.5 * half), (length * 0.93, half)]
        carver.body([(-2.0, 0.0), *tip, (2.0, half), (-2.0, 0.7 * half)], thick=3.0, round_=2.2, material=made_of)
        carver.groove((4.0, 0.5 * half), (length * 0.9, 0.5 * half), 0.7)
        for x in np.arange(5.0, length * 0.9, 2.0):
            carver.groove((x, 0.2), (x + 1.0, 0.2), 0.3)
        plates.append(carver.plate(0.04, rng))
    joint = rng.uniform(8.0, 14.0)
    wrist = _joint(scale, rng, joint, radius * max(0.8, build.joint[0]))
    shaft = _tube(scale, rng, radius, build.collar * rng.uniform(2, 12))
    return Tool(shaft, wrist, (plates[0], plates[1].mirrored()), joint)


def _suction(scale: float, rng: Generator, build: Build) -> Tool:
    length, radius = rng.uniform(9.0, 20.0), rng.uniform(2.3, 4.5)
    carver = Carver(-1.0, length + 0.5, radius, scale)
    carver.tube(radius * 0.98, 1.0, end=length, material=METAL)
    for x in np.arange(2.0, length - 1.0, rng.uniform(1.8, 3.0)):
        carver.sink(circle((x, rng.uniform(-0.5, 0.5) * radius), rng.uniform(0.35, 0.6), 16), deep=1.0, dark=0.1)
    return Tool(_tube(scale, rng, radius, 0.0), None, (carver.plate(0.05, rng),), 0.0)


_BUILD: dict[str, Callable[[float, Generator, Build], Tool]] = dict(
    zip(KINDS, (_grasper, _scissors, _hook, _clip_applier, _stapler, _suction), strict=True)
)
