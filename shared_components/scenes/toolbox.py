"""All kinds of instruments, and the techniques of operations: tools, arms and camera."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared_components.scenes import instruments, laparoscopic, slender, wristed
from shared_components.scenes.instruments import Tool

NEEDLE, PROGRASP, SHEARS, MARYLAND = instruments.KINDS
GRASPER, SCISSORS, HOOK, CLIPS, STAPLER, SUCTION = laparoscopic.KINDS
KERATOME, EYE_FORCEPS, PHACO, CANNULA, CHOPPER = slender.OCULAR
SNARE, BIOPSY, BALLOON, INJECTION = slender.ENDOSCOPIC
VERBS = {
    NEEDLE: "drive", PROGRASP: "grasp", SHEARS: "cut", MARYLAND: "coagulate", GRASPER: "grasp", SCISSORS: "cut",
    HOOK: "dissect", CLIPS: "clip", STAPLER: "staple", SUCTION: "aspirate",
    KERATOME: "cut", EYE_FORCEPS: "grasp", PHACO: "aspirate", CANNULA: "irrigate", CHOPPER: "dissect",
    SNARE: "cut", BIOPSY: "grasp", BALLOON: "dilate", INJECTION: "inject",
}  # fmt: skip
Hands = Mapping[int, tuple[tuple[str | None, ...], ...]]


@dataclass(frozen=True)
class Station:
    """Positions of freely placed arms; lengths in mm, ranges as (minimum, maximum)."""

    depth: tuple[float, float] = (30.0, 60.0)  # distance of the tip from the camera
    aside: tuple[float, float] = (-0.2, 0.35)  # distance of the tip from the middle towards the arm, per mm of depth
    away: float = 80.0  # distance of the trocar from the camera's axis
    entry: tuple[float, float] = (2.0, 0.9)  # depth of the trocar; the maximum is a factor of the tip's depth
    towards: tuple[float, float] = (0.0, 360.0)  # first arm in degrees (0 right, 90 below); others at 120 degrees
    size: tuple[float, float] = (0.7, 1.6)  # factor of an instrument's lengths
    reach: float = 1.0  # factor of an instrument's motion
    flex: float = 1.0  # factor of the wrist's bending


ROAM = Station()
_NEARER = Station(depth=(26.0, 60.0), flex=1.7)
# under a microscope, instruments lie nearly across the view
_FLAT = Station(depth=(44.0, 58.0), aside=(-0.05, 0.3), entry=(30.0, 0.98), size=(0.6, 1.4), reach=0.7)
# a flexible endoscope's instruments leave its channel beside the lens, and point ahead
_CHANNEL = Station(
    depth=(16.0, 52.0), aside=(-0.1, 0.25), away=9.0, entry=(1.0, 0.14), towards=(20.0, 160.0), size=(0.55, 1.2),
    reach=0.6,
)  # fmt: skip


@dataclass(frozen=True)
class Technique:
    """Instruments, arms and camera of one kind of operation.

    Arms that roam come from any side, with any size and depth, and never in one line. Other arms come from the left,
    the right and above, as a robot's arms.
    """

    hands: Hands  # tools that the left, right and third arm may hold, by phase
    roam: bool
    activity: tuple[float, ...] = ()  # factor of the motion in each phase; empty: 1
    zoom: tuple[float, ...] = ()  # nearness of the camera in each phase, -1 far to 1 near; empty: 0
    smoky: frozenset[int] = frozenset({2})  # phases with coagulation
    station: Station = ROAM  # positions of arms that roam


_ROBOT: Hands = {
    0: ((PROGRASP, MARYLAND), (SHEARS, PROGRASP), (None,)),
    1: ((MARYLAND, PROGRASP), (SHEARS,), (None, PROGRASP)),
    2: ((MARYLAND,), (SHEARS, PROGRASP), (None, PROGRASP)),
    3: ((NEEDLE, MARYLAND), (NEEDLE,), (None, PROGRASP)),
}
_STRAIGHT: Hands = {
    0: ((GRASPER,), (GRASPER, SUCTION, None), (None, None, GRASPER)),
    1: ((GRASPER,), (HOOK, SCISSORS, GRASPER), (None, GRASPER, SUCTION)),
    2: ((GRASPER, SUCTION), (HOOK, GRASPER, CLIPS), (None, SUCTION)),
    3: ((GRASPER,), (STAPLER, CLIPS, GRASPER), (None, SCISSORS)),
}
_EITHER: Hands = {
    phase: tuple((*a, *b) for a, b in zip(hands, _STRAIGHT[phase], strict=True)) for phase, hands in _ROBOT.items()
}
_CATARACT: Hands = {
    0: ((KERATOME, CANNULA), (EYE_FORCEPS, CANNULA, None), (None,)),
    1: ((EYE_FORCEPS, CANNULA), (CHOPPER, None), (None,)),
    2: ((PHACO,), (CHOPPER, EYE_FORCEPS, None), (None,)),
    3: ((PHACO, CANNULA, EYE_FORCEPS), (CANNULA, CHOPPER, None), (None,)),
}
_ENDOSCOPY: Hands = {phase: ((SNARE, BIOPSY, BALLOON, INJECTION), (None,), (None,)) for phase in range(4)}
_CHOLECYSTECTOMY: Hands = {
    0: ((GRASPER,), (GRASPER, None), (None,)),
    1: ((GRASPER,), (HOOK,), (None, GRASPER)),
    2: ((GRASPER,), (CLIPS, SCISSORS), (None,)),
    3: ((GRASPER,), (HOOK, HOOK, MARYLAND), (None, GRASPER)),
    4: ((GRASPER,), (GRASPER,), (GRASPER, None)),
    5: ((GRASPER,), (MARYLAND, SUCTION), (SUCTION, None)),
    6: ((GRASPER, None), (None,), (None,)),
}
_APPENDECTOMY: Hands = {
    0: ((GRASPER,), (None, GRASPER), (None,)),
    1: ((GRASPER,), (MARYLAND, HOOK), (None,)),
    2: ((GRASPER,), (STAPLER, CLIPS, SCISSORS), (None,)),
    3: ((GRASPER, None), (SUCTION,), (None,)),
}
TECHNIQUES: dict[str, Technique] = {
    "fixed": Technique(_ROBOT, roam=False),
    "robotic": Technique(_ROBOT, roam=True),
    "laparoscopic": Technique(_STRAIGHT, roam=True),
    "mixed": Technique(_EITHER, roam=True),
    "wristed": Technique(_ROBOT, roam=True, station=_NEARER),
    "cataract": Technique(_CATARACT, roam=True, smoky=frozenset(), station=_FLAT),
    "endoscopy": Technique(_ENDOSCOPY, roam=True, smoky=frozenset(), station=_CHANNEL),
    "cholecystectomy": Technique(
        _CHOLECYSTECTOMY, roam=True, activity=(1.3, 0.6, 0.35, 0.8, 1.2, 1.0, 1.6),
        zoom=(-1.5, 0.8, 1.5, 0.3, -0.4, 0.0, -1.5), smoky=frozenset({1, 3, 5}),
    ),
    "appendectomy": Technique(_APPENDECTOMY, roam=True, smoky=frozenset({1})),
}  # fmt: skip


_WIDEST = {kind: shape[3] for kind, shape in instruments.SHAPES.items()} | laparoscopic.WIDEST | slender.WIDEST
_FLEX = dict.fromkeys(instruments.KINDS, 1.0) | laparoscopic.FLEX


def tool(kind: str, scale: float, model: int = 0, *, real: bool = False) -> Tool:
    """Build the plates of one instrument.

    Args:
        kind: Kind of instrument, a key of `VERBS`.
        scale: Pixels per mm.
        model: Any number; models of straight and thin kinds differ in shape, models of robotic kinds in wear.
        real: Whether instruments have real proportions; then models of all kinds differ in shape.
    """
    if kind in slender.KINDS:
        return slender.slender_tool(kind, scale, model % slender.MODELS)
    if kind in laparoscopic.KINDS:
        models = laparoscopic.MODELS * (2 if real else 1)
        return laparoscopic.straight_tool(kind, scale, model % models, laparoscopic.FULL if real else laparoscopic.SLIM)
    if real:
        return wristed.wristed_tool(kind, scale, model % wristed.MODELS)
    return instruments.robotic_tool(kind, scale, model % instruments.MODELS)


def widest(kind: str) -> float:
    """Return the largest opening of a kind's jaws in radians; 0 for a single tip."""
    return _WIDEST.get(kind, 0.0)


def flex(kind: str) -> float:
    """Return how far a kind's wrist bends, relative to a robot's wrist."""
    return _FLEX.get(kind, 0.0)
