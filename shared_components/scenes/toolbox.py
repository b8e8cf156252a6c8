"""All instruments by kind, and the kinds that the arms of an operation may hold."""

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
    """Where arms that roam stand; lengths in mm, ranges as (least, most).

    Attributes:
        depth: of the tip before the camera; aside: of the tip from the middle, towards the arm, in depths.
        away: of the place where an arm enters from the camera's axis; entry: its depth, the most in tips' depths.
        towards: side of the first arm in degrees, 0 right, 90 below; the others come from a third of a turn further.
        size: factor on all lengths of an instrument; reach: on its motion; flex: on how far its wrist bends.
    """

    depth: tuple[float, float] = (30.0, 60.0)
    aside: tuple[float, float] = (-0.2, 0.35)
    away: float = 80.0
    entry: tuple[float, float] = (2.0, 0.9)
    towards: tuple[float, float] = (0.0, 360.0)
    size: tuple[float, float] = (0.7, 1.6)
    reach: float = 1.0
    flex: float = 1.0


ROAM = Station()
_NEARER = Station(depth=(26.0, 60.0), flex=1.7)
_FLAT = Station(depth=(44.0, 58.0), aside=(-0.05, 0.3), entry=(30.0, 0.98), size=(0.6, 1.4), reach=0.7)
"""Under a microscope instruments lie nearly across the view."""
_CHANNEL = Station(
    depth=(16.0, 52.0),
    aside=(-0.1, 0.25),
    away=9.0,
    entry=(1.0, 0.14),
    towards=(20.0, 160.0),
    size=(0.55, 1.2),
    reach=0.6,
)
"""A flexible endoscope's instruments leave its channel beside the lens, and point ahead."""


@dataclass(frozen=True)
class Custom:
    """How one kind of operation is done.

    Attributes:
        hands: phase -> the tools that the left, the right and the third arm may hold.
        roam: arms come from anywhere around the picture, near and far, big and small, and never in one line;
            otherwise from the left, the right and above, as a robot's.
        vigour: how far instruments move in each phase, 1 as usual; none: alike in all.
        zoom: how near the camera is in each phase, -1 far to 1 near, 0 as usual.
        fumes: the phases in which tissue is coagulated.
        station: where arms that roam stand.
    """

    hands: Hands
    roam: bool
    vigour: tuple[float, ...] = ()
    zoom: tuple[float, ...] = ()
    fumes: frozenset[int] = frozenset({2})
    station: Station = ROAM


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
CUSTOMS: dict[str, Custom] = {
    "fixed": Custom(_ROBOT, roam=False),
    "robotic": Custom(_ROBOT, roam=True),
    "laparoscopic": Custom(_STRAIGHT, roam=True),
    "mixed": Custom(_EITHER, roam=True),
    "wristed": Custom(_ROBOT, roam=True, station=_NEARER),
    "cataract": Custom(_CATARACT, roam=True, fumes=frozenset(), station=_FLAT),
    "endoscopy": Custom(_ENDOSCOPY, roam=True, fumes=frozenset(), station=_CHANNEL),
    "cholecystectomy": Custom(
        _CHOLECYSTECTOMY, roam=True, vigour=(1.3, 0.6, 0.35, 0.8, 1.2, 1.0, 1.6),
        zoom=(-1.5, 0.8, 1.5, 0.3, -0.4, 0.0, -1.5), fumes=frozenset({1, 3, 5}),
    ),
    "appendectomy": Custom(_APPENDECTOMY, roam=True, fumes=frozenset({1})),
}  # fmt: skip


def tool(kind: str, scale: float, model: int = 0, *, real: bool = False) -> Tool:
    """Carve the plates of one kind at `scale` pixels per mm.

    Args:
        model: any number; kinds have a few models that differ in shape (straight ones) or in wear (a robot's).
        real: in the proportions of real instruments, with models that all differ in shape.
    """
    if kind in instruments.KINDS:
        if real:
            return wristed.wristed_tool(kind, scale, model % wristed.MODELS)
        return instruments.robotic_tool(kind, scale, model % instruments.MODELS)
    if kind in slender.KINDS:
        return slender.slender_tool(kind, scale, model % slender.MODELS)
    build = laparoscopic.FULL if real else laparoscopic.SLIM
    return laparoscopic.straight_tool(
        kind, scale, model % (2 * laparoscopic.MODELS if real else laparoscopic.MODELS), build
    )


def widest(kind: str) -> float:
    """Return the largest opening of a kind's jaws in radians."""
    if kind in slender.KINDS:
        return slender.WIDEST.get(kind, 0.0)
    return instruments.widest(kind) if kind in instruments.KINDS else laparoscopic.widest(kind)


def flex(kind: str) -> float:
    """Return how far a kind's wrist bends, 1 as a robot's."""
    return 1.0 if kind in instruments.KINDS else laparoscopic.FLEX.get(kind, 0.0)
