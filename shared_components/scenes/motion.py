"""Script of a video: phases, visible instruments and their positions.

It depends only on the video's seed, so every look shows the same movements.
Camera coordinates in mm: x right, y down, z away from the camera.
"""

from dataclasses import dataclass, replace

import numpy as np

from shared_components.scenes.toolbox import CUSTOMS, ROAM, VERBS, Custom, Station, flex, widest

Array = np.ndarray

PHASES = ("exploration", "dissection", "coagulation", "suturing")
ARMS = ("Left", "Right", "Third")
_EXCHANGE = 1.2  # seconds to withdraw or insert an instrument
_BLINK = 0.2  # seconds over which a speed is taken
_CHANGE = 2.0  # seconds in which motion changes to another phase's
_WITHDRAWN = 75.0  # mm along the shaft at which an instrument is out of sight


@dataclass(frozen=True)
class Pose:
    """One instrument in space.

    Attributes:
        arm: index into ARMS; kind: name of the tool; size: factor on all its lengths.
        joint: distal end of the shaft (3,); shaft, wrist: unit directions (3,); jaws: two unit directions.
        hinge: unit axis around which the jaws turn (3,), towards the camera.
        grip: 0 closed to 1 wide open.
        speed: of the tip in mm a second, where the operation's verbs depend on it.
    """

    arm: int
    kind: str
    size: float
    joint: Array
    shaft: Array
    wrist: Array
    jaws: tuple[Array, Array]
    hinge: Array
    grip: float
    speed: float = 0.0

    @property
    def name(self) -> str:
        return f"{ARMS[self.arm]}_{self.kind}"

    @property
    def verb(self) -> str:
        return VERBS[self.kind] if self.grip < 0.25 else "idle"


class Wave:
    """A smooth, never repeating signal of about unit amplitude: three sines of random period and phase."""

    def __init__(self, rng: np.random.Generator, count: int, *, periods: tuple[float, float]) -> None:
        self.frequency = 2 * np.pi / np.exp(rng.uniform(np.log(periods[0]), np.log(periods[1]), (count, 3)))
        self.phase = rng.uniform(0, 2 * np.pi, (count, 3))
        weights = rng.uniform(0.3, 1.0, (count, 3))
        self.weight = 1.2 * weights / weights.sum(1, keepdims=True)

    def __call__(self, time: float) -> Array:
        return (self.weight * np.sin(self.frequency * time + self.phase)).sum(1)


class Arm:
    """One robot arm: a trocar outside the picture, a region to work in, and the tools it holds over time."""

    def __init__(
        self, rng: np.random.Generator, index: int, *, towards: float | None = None, station: Station = ROAM
    ) -> None:
        """Place the arm; one that roams comes from about `towards` (degrees, 0 right, 90 below)."""
        self.index = index
        self.reach, self.flex = 1.0, station.flex
        if towards is None:
            self._stand(rng)
        else:
            self._roam(rng, towards, station)
        self.sway = Wave(rng, 3, periods=(3.0, 14.0))
        self.bend = Wave(rng, 3, periods=(4.0, 12.0))
        self.squeeze = Wave(rng, 1, periods=(1.5, 6.0))
        self.stays: list[tuple[float, float, str]] = []

    def _stand(self, rng: np.random.Generator) -> None:
        """Stand as a robot's arm: from the left, the right or above, at one distance."""
        middle, spread = ((180.0, 35.0), (0.0, 35.0), (-90.0, 40.0))[self.index]
        outward = _direction(middle + rng.uniform(-spread, spread))
        self.trocar = outward * (75.0, 65.0, 0.0) + (0.0, 0.0, rng.uniform(2.0, 22.0))
        self.home = outward * rng.uniform(3.0, 14.0) + (0.0, 0.0, rng.uniform(42.0, 52.0))
        self.home[:2] += rng.uniform(-4.0, 4.0, 2)
        self.size = rng.uniform(0.78, 1.08)
        self.roll = rng.uniform(-0.5, 0.5)

    def _roam(self, rng: np.random.Generator, towards: float, station: Station) -> None:
        """Come from about `towards`, end anywhere in the picture, near or far."""
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
        """Keep `kind` in the picture from `start` to `end`; the same tool simply stays."""
        if self.stays and self.stays[-1][1] == start and self.stays[-1][2] == kind:
            self.stays[-1] = (self.stays[-1][0], end, kind)
        else:
            self.stays.append((start, end, kind))

    def pose(self, time: float, last: float, vigour: float = 1.0) -> Pose | None:
        """Return the pose at `time`; None while the arm holds nothing. `last` is the end of the video."""
        for start, end, kind in self.stays:
            if start <= time < end:
                inserted = 1.0 if start == 0.0 else min(1.0, (time - start) / _EXCHANGE)
                inserted = min(inserted, 1.0 if end >= last else (end - time) / _EXCHANGE)
                return self._place(time, kind, inserted, vigour)
        return None

    def speed(self, time: float, vigour: float) -> float:
        """Return how fast the tip moves, in mm a second."""
        way = self.reach * vigour * (self.sway(time) - self.sway(time - _BLINK)) * (9.0, 7.0, 4.0)
        return float(np.sqrt(way.dot(way))) / _BLINK

    def _place(self, time: float, kind: str, inserted: float, vigour: float) -> Pose:
        target = self.home + self.reach * vigour * self.sway(time) * (9.0, 7.0, 4.0)
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
    """Return the cross product of two vectors (3,); numpy's takes ten times as long for so few numbers."""
    return np.array([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def _direction(degrees: float) -> Array:
    angle = np.deg2rad(degrees)
    return np.array([np.cos(angle), np.sin(angle), 0.0])


def _unit(vector: Array) -> Array:
    return vector / np.sqrt(vector.dot(vector))


@dataclass(frozen=True)
class Moment:
    """The scene's state in one frame.

    Attributes:
        phase: index into PHASES; gesture: SAR-RARP50 action 0..7; poses: the instruments.
        shift: camera movement (3,): pan x, pan y, zoom, each about -1..1; turn: camera roll in radians.
        breath: tissue movement (2,), about -1..1; fume: amount of smoke 0..1.
    """

    time: float
    phase: int
    gesture: int
    poses: tuple[Pose, ...]
    shift: Array
    turn: float
    breath: Array
    fume: float


class Script:
    """The course of one video of `frames` frames at `rate` frames per second, by one of `toolbox.CUSTOMS`.

    `empty` is the chance that a phase shows no instrument.
    """

    def __init__(
        self, rng: np.random.Generator, *, frames: int, rate: float, custom: str = "fixed", empty: float = 0.0
    ) -> None:
        self.rate, self.length = rate, frames / rate
        self.ways = ways = CUSTOMS[custom]
        self.phases, self.cuts = _phases(rng, self.length, len(ways.hands))
        self.arms = _arms(rng, ways)
        for phase, start, end in zip(self.phases, self.cuts[:-1], self.cuts[1:], strict=True):
            if not empty or rng.random() >= empty:  # else the phase shows no instrument
                _equip(rng, self.arms, ways.hands[phase], phase, start, end)
        self.camera = Wave(rng, 4, periods=(6.0, 25.0))
        self.tissue = Wave(rng, 2, periods=(2.5, 5.0))
        self.smoke = Wave(rng, 1, periods=(2.0, 6.0))
        self.gestures = rng.permutation(7)

    @property
    def kinds(self) -> list[str]:
        """Return the tools that are ever held, in order of their names."""
        return sorted({kind for arm in self.arms for _, _, kind in arm.stays})

    def moment(self, index: int) -> Moment:
        time = index / self.rate
        span = min(int(np.searchsorted(self.cuts, time, side="right")) - 1, len(self.phases) - 1)
        phase = int(self.phases[span])
        vigour, zoom = self._of_phase(self.ways.vigour, time, 1.0), self._of_phase(self.ways.zoom, time, 0.0)
        poses = [self._pose(arm, time, vigour) for arm in self.arms]
        share = (time - self.cuts[span]) / (self.cuts[span + 1] - self.cuts[span])
        fume = float(np.clip(0.55 + 0.6 * self.smoke(time)[0], 0.0, 1.0))
        camera = self.camera(time)
        return Moment(
            time=time,
            phase=phase,
            gesture=1 + int(self.gestures[min(int(share * 7), 6)]) if phase == 3 else 0,
            poses=tuple(pose for pose in poses if pose is not None),
            shift=camera[:3] + np.array((0.0, 0.0, zoom)),
            turn=0.06 * float(camera[3]),
            breath=self.tissue(time),
            fume=fume * (1.0 if phase in self.ways.fumes else 0.15),
        )

    def _pose(self, arm: Arm, time: float, vigour: float) -> Pose | None:
        pose = arm.pose(time, self.length, vigour)
        return replace(pose, speed=arm.speed(time, vigour)) if pose is not None and self.ways.vigour else pose

    def _of_phase(self, values: tuple[float, ...], time: float, usual: float) -> float:
        """Return a phase's number, which changes to the next phase's in some seconds after the cut."""
        if not values:
            return usual
        own = [values[phase] for phase in self.phases]
        points = [point for cut in self.cuts[1:-1] for point in (cut, cut + _CHANGE)]
        return float(np.interp(time, points, np.repeat(own, 2)[1:-1])) if points else own[0]


def _phases(rng: np.random.Generator, length: float, phases: int) -> tuple[Array, Array]:
    """Return the phases in order and the times at which they begin (and the end of the video)."""
    count = int(min(phases, max(1, length // 3)))
    order = np.sort(rng.permutation(phases)[:count])
    shares = rng.uniform(0.6, 1.4, count)
    return order, np.concatenate([[0.0], np.cumsum(shares) / shares.sum() * length])


def _arms(rng: np.random.Generator, ways: Custom) -> list[Arm]:
    """Place three arms; those that roam come from three sides, so that no two lie in one line."""
    if not ways.roam:
        return [Arm(rng, index) for index in range(3)]
    first = rng.uniform(*ways.station.towards)
    return [Arm(rng, index, towards=first + 120.0 * index, station=ways.station) for index in range(3)]


def _equip(
    rng: np.random.Generator,
    arms: list[Arm],
    hands: tuple[tuple[str | None, ...], ...],
    phase: int,
    start: float,
    end: float,
) -> None:
    """Choose what each arm holds in one phase; now and then an arm, or every arm, is out of the picture."""
    away = [rng.random() < share for share in (0.15, 0.1, 0.3)]
    if away[0] and away[1]:
        away[1] = False
    early = rng.uniform(0.2, 0.4) * (end - start)  # how long before the end all arms leave, if they do
    leave = end - early if rng.random() < (0.15 if phase == 0 else 0.03) else end
    for arm, choice in zip(arms, hands, strict=True):
        kind = choice[int(rng.integers(len(choice)))]
        held = arm.stays[-1][2] if arm.stays else None
        kind = held if held in choice and rng.random() < 0.7 else kind
        wait = min(rng.uniform(0.0, 1.0), 0.2 * (end - start)) if start > 0 else 0.0
        if kind is not None and not away[arm.index]:
            arm.hold(start if held == kind else start + wait, leave, kind)
