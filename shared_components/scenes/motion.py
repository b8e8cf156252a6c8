"""Script of a video: phases, visible instruments and their positions.

It depends only on the video's seed, so every look shows the same movements. Camera coordinates are in mm: x right, y
down, z away from the camera.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from shared_components.scenes.toolbox import TECHNIQUES, VERBS, Station, Technique, flex, widest

Array = np.ndarray

PHASES = ("exploration", "dissection", "coagulation", "suturing")
ARMS = ("Left", "Right", "Third")
_EXCHANGE = 1.2  # seconds to withdraw or insert an instrument
_SPEED_INTERVAL = 0.2  # seconds
_CHANGE = 2.0  # seconds of the change of motion and zoom between two phases
_WITHDRAWN = 75.0  # distance in mm along the shaft of an instrument out of sight
_SWAY = (9.0, 7.0, 4.0)  # amplitude of a tip's motion in mm


@dataclass(frozen=True)
class Pose:
    arm: int  # index into ARMS
    kind: str  # kind of instrument
    size: float  # factor of all lengths
    joint: Array  # distal end of the shaft (3,)
    shaft: Array  # unit direction (3,)
    wrist: Array  # unit direction (3,)
    jaws: tuple[Array, Array]  # two unit directions (3,)
    hinge: Array  # unit axis of the jaws (3,), towards the camera
    grip: float  # 0 closed to 1 wide open
    speed: float = 0.0  # mm per second, if the operation's verbs depend on it

    @property
    def name(self) -> str:
        return f"{ARMS[self.arm]}_{self.kind}"

    @property
    def verb(self) -> str:
        return VERBS[self.kind] if self.grip < 0.25 else "idle"


class Wave:
    """A smooth signal of about unit amplitude that never repeats: three sines of random period and phase."""

    def __init__(self, rng: Generator, count: int, *, periods: tuple[float, float]) -> None:
        self.frequency = 2 * np.pi / np.exp(rng.uniform(np.log(periods[0]), np.log(periods[1]), (count, 3)))
        self.phase = rng.uniform(0, 2 * np.pi, (count, 3))
        weights = rng.uniform(0.3, 1.0, (count, 3))
        self.weight = 1.2 * weights / weights.sum(1, keepdims=True)

    def __call__(self, time: float) -> Array:
        return (self.weight * np.sin(self.frequency * time + self.phase)).sum(1)


class Arm:
    """An arm: a trocar outside the picture, a region to work in, and the tools it holds over time.

    An arm without `towards` is a robot's arm. Other arms come from about this direction (degrees, 0 right, 90 below).
    """

    def __init__(self, rng: Generator, index: int, station: Station, towards: float | None = None) -> None:
        self.index = index
        self.reach, self.flex = 1.0, station.flex
        if towards is None:
            self._place_robot(rng)
        else:
            self._place_freely(rng, towards, station)
        self.sway = Wave(rng, 3, periods=(3.0, 14.0))
        self.bend = Wave(rng, 3, periods=(4.0, 12.0))
        self.squeeze = Wave(rng, 1, periods=(1.5, 6.0))
        self.stays: list[tuple[float, float, str]] = []

    def _place_robot(self, rng: Generator) -> None:
        """Come from the left, the right or above, at one distance."""
        middle, spread = ((180.0, 35.0), (0.0, 35.0), (-90.0, 40.0))[self.index]
        outward = _direction(middle + rng.uniform(-spread, spread))
        self.trocar = outward * (75.0, 65.0, 0.0) + (0.0, 0.0, rng.uniform(2.0, 22.0))
        self.home = outward * rng.uniform(3.0, 14.0) + (0.0, 0.0, rng.uniform(42.0, 52.0))
        self.home[:2] += rng.uniform(-4.0, 4.0, 2)
        self.size = rng.uniform(0.78, 1.08)
        self.roll = rng.uniform(-0.5, 0.5)

    def _place_freely(self, rng: Generator, towards: float, station: Station) -> None:
        """Come from about `towards`, and work anywhere in the picture, near or far."""
        outward = _direction(towards + rng.uniform(-20.0, 20.0))
        depth = rng.uniform(*station.depth)
        self.home = outward * rng.uniform(*station.aside) * depth + (0.0, 0.0, depth)
        self.home[:2] += rng.uniform(-0.12, 0.12, 2) * depth
        away, (low, high) = station.away, station.entry
        self.trocar = outward * (away, 0.875 * away, 0.0) + (0.0, 0.0, rng.uniform(low, high * depth))
        self.size = float(np.exp(rng.uniform(*np.log(station.size))))
        self.roll = rng.uniform(-np.pi, np.pi)
        self.reach = depth / 40.0 * station.reach

    def hold(self, start: float, end: float, kind: str) -> None:
        """Show `kind` from `start` to `end`; the same tool stays in the picture."""
        if self.stays and self.stays[-1][1] == start and self.stays[-1][2] == kind:
            self.stays[-1] = (self.stays[-1][0], end, kind)
        else:
            self.stays.append((start, end, kind))

    def pose(self, time: float, last: float, activity: float = 1.0) -> Pose | None:
        """Return the pose at `time`, or None while the arm holds nothing; `last` is the end of the video."""
        for start, end, kind in self.stays:
            if start <= time < end:
                inserted = 1.0 if start == 0.0 else min(1.0, (time - start) / _EXCHANGE)
                inserted = min(inserted, 1.0 if end >= last else (end - time) / _EXCHANGE)
                return self._place(time, kind, inserted, activity)
        return None

    def speed(self, time: float, activity: float) -> float:
        """Return the speed of the tip in mm per second."""
        change = self.reach * activity * (self.sway(time) - self.sway(time - _SPEED_INTERVAL)) * _SWAY
        return float(np.sqrt(change.dot(change))) / _SPEED_INTERVAL

    def _place(self, time: float, kind: str, inserted: float, activity: float) -> Pose:
        target = self.home + self.reach * activity * self.sway(time) * _SWAY
        shaft = _unit(target - self.trocar)
        target = target - shaft * _WITHDRAWN * (1.0 - inserted * inserted * (3.0 - 2.0 * inserted))
        free = self.flex * flex(kind)
        pitch, yaw, turn = self.bend(time) * (0.5 * free, 0.4 * free, 0.45)
        towards = _unit(-target + target.dot(shaft) * shaft)
        side = cross(towards, shaft)
        roll = self.roll + turn
        side, up = np.cos(roll) * side + np.sin(roll) * towards, np.cos(roll) * towards - np.sin(roll) * side
        wrist = np.cos(pitch) * shaft + np.sin(pitch) * up
        hinge = cross(wrist, side)
        across = cross(hinge, wrist)
        grip = float(np.clip(0.5 + 1.1 * self.squeeze(time)[0], 0.0, 1.0))
        half = 0.5 * widest(kind) * grip
        jaws = tuple(np.cos(yaw + s * half) * wrist + np.sin(yaw + s * half) * across for s in (1.0, -1.0))
        return Pose(self.index, kind, self.size, target, shaft, wrist, jaws, hinge, grip)


def cross(a: Array, b: Array) -> Array:
    """Return the cross product of two vectors (3,), ten times as fast as numpy."""
    return np.array([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def _direction(degrees: float) -> Array:
    angle = np.deg2rad(degrees)
    return np.array([np.cos(angle), np.sin(angle), 0.0])


def _unit(vector: Array) -> Array:
    return vector / np.sqrt(vector.dot(vector))


@dataclass(frozen=True)
class Moment:
    """The scene's state in one frame."""

    time: float  # seconds from the start
    phase: int  # index of the phase
    gesture: int  # SAR-RARP50 action, 0 to 7
    poses: tuple[Pose, ...]
    shift: Array  # camera movement (3,): pan x, pan y, zoom, each about -1 to 1
    turn: float  # camera roll in radians
    breath: Array  # tissue movement (2,), about -1 to 1
    smoke: float  # 0 to 1


class Script:
    """The course of a video of `frames` frames at `rate` frames per second.

    `technique` is a key of `toolbox.TECHNIQUES`; `empty` is the chance that a phase shows no instrument.
    """

    def __init__(
        self, rng: Generator, *, frames: int, rate: float, technique: str = "fixed", empty: float = 0.0
    ) -> None:
        self.rate, self.length = rate, frames / rate
        self.technique = TECHNIQUES[technique]
        self.phases, self.cuts = _phases(rng, self.length, len(self.technique.hands))
        self.arms = _arms(rng, self.technique)
        for phase, start, end in zip(self.phases, self.cuts[:-1], self.cuts[1:], strict=True):
            if not empty or rng.random() >= empty:
                _equip(rng, self.arms, self.technique.hands[phase], (start, end), first=phase == 0)
        self.camera = Wave(rng, 4, periods=(6.0, 25.0))
        self.tissue = Wave(rng, 2, periods=(2.5, 5.0))
        self.smoke = Wave(rng, 1, periods=(2.0, 6.0))
        self.gestures = rng.permutation(7)

    @property
    def kinds(self) -> list[str]:
        """Tools that the arms hold at any time, sorted by name."""
        return sorted({kind for arm in self.arms for _, _, kind in arm.stays})

    def moment(self, index: int) -> Moment:
        """Return the scene's state in frame `index`."""
        time = index / self.rate
        span = min(int(np.searchsorted(self.cuts, time, side="right")) - 1, len(self.phases) - 1)
        phase = int(self.phases[span])
        activity = self._by_phase(self.technique.activity, time, 1.0)
        zoom = self._by_phase(self.technique.zoom, time, 0.0)
        poses = [self._pose(arm, time, activity) for arm in self.arms]
        share = (time - self.cuts[span]) / (self.cuts[span + 1] - self.cuts[span])
        smoke = float(np.clip(0.55 + 0.6 * self.smoke(time)[0], 0.0, 1.0))
        camera = self.camera(time)
        return Moment(
            time=time, phase=phase, gesture=1 + int(self.gestures[min(int(share * 7), 6)]) if phase == 3 else 0,
            poses=tuple(pose for pose in poses if pose is not None), shift=camera[:3] + np.array((0.0, 0.0, zoom)),
            turn=0.06 * float(camera[3]), breath=self.tissue(time),
            smoke=smoke * (1.0 if phase in self.technique.smoky else 0.15),
        )  # fmt: skip

    def _pose(self, arm: Arm, time: float, activity: float) -> Pose | None:
        pose = arm.pose(time, self.length, activity)
        return replace(pose, speed=arm.speed(time, activity)) if pose is not None and self.technique.activity else pose

    def _by_phase(self, values: tuple[float, ...], time: float, default: float) -> float:
        """Return the value of the phase at `time`; it changes gradually after the end of a phase."""
        if not values:
            return default
        own = [values[phase] for phase in self.phases]
        points = [point for cut in self.cuts[1:-1] for point in (cut, cut + _CHANGE)]
        return float(np.interp(time, points, np.repeat(own, 2)[1:-1])) if points else own[0]


def _phases(rng: Generator, length: float, phases: int) -> tuple[Array, Array]:
    """Return the phases in order, and their start times with the end of the video."""
    count = int(min(phases, max(1, length // 3)))
    order = np.sort(rng.permutation(phases)[:count])
    shares = rng.uniform(0.6, 1.4, count)
    return order, np.concatenate([[0.0], np.cumsum(shares) / shares.sum() * length])


def _arms(rng: Generator, technique: Technique) -> list[Arm]:
    """Place three arms; freely placed arms come from three sides, so that no two lie in one line."""
    if not technique.roam:
        return [Arm(rng, index, technique.station) for index in range(3)]
    first = rng.uniform(*technique.station.towards)
    return [Arm(rng, index, technique.station, first + 120.0 * index) for index in range(3)]


def _equip(
    rng: Generator, arms: list[Arm], hands: Sequence[Sequence[str | None]], span: tuple[float, float], *, first: bool
) -> None:
    """Choose each arm's tool in the phase of `span` (seconds); sometimes one arm or all arms are out of the picture."""
    start, end = span
    away = [rng.random() < share for share in (0.15, 0.1, 0.3)]
    if away[0] and away[1]:
        away[1] = False
    early = rng.uniform(0.2, 0.4) * (end - start)
    leave = end - early if rng.random() < (0.15 if first else 0.03) else end  # sometimes all arms leave early
    for arm, choice in zip(arms, hands, strict=True):
        kind = choice[int(rng.integers(len(choice)))]
        previous = arm.stays[-1][2] if arm.stays else None
        kind = previous if previous in choice and rng.random() < 0.7 else kind
        wait = min(rng.uniform(0.0, 1.0), 0.2 * (end - start)) if start > 0 else 0.0
        if kind is not None and not away[arm.index]:
            arm.hold(start if previous == kind else start + wait, leave, kind)
