"""All kinds of instruments, and the techniques of operations: tools, arms and camera."""

from dataclasses import dataclass

import msgspec

from shared_components.common.plain_yaml import beside, read_own_yaml
from shared_components.scenes import instruments, laparoscopic, slender, wristed
from shared_components.scenes.instruments import Tool

NEEDLE, PROGRASP, SHEARS, MARYLAND = instruments.KINDS
GRASPER, SCISSORS, HOOK, CLIPS, STAPLER, SUCTION = laparoscopic.KINDS
VERBS = {
    "Large_Needle_Driver": "drive", "Prograsp_Forceps": "grasp", "Monopolar_Curved_Scissors": "cut",
    "Maryland_Bipolar_Forceps": "coagulate", "Grasper": "grasp", "Scissors": "cut", "Hook": "dissect",
    "Clip_Applier": "clip", "Stapler": "staple", "Suction": "aspirate", "Keratome": "cut", "Eye_Forceps": "grasp",
    "Phaco_Tip": "aspirate", "Eye_Cannula": "irrigate", "Chopper": "dissect", "Snare": "cut",
    "Biopsy_Forceps": "grasp", "Balloon": "dilate", "Injection_Needle": "inject",
}  # fmt: skip
"""Verb of each kind of instrument."""


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


@dataclass(frozen=True)
class Technique:
    """Instruments, arms and camera of an operation.

    Arms that roam come from any side, with any size and depth, and never in one line. Other arms come from the left,
    the right and above, as a robot's arms.
    """

    hands: tuple[tuple[tuple[str | None, ...], ...], ...]  # tools that the left, right and third arm may hold, by phase
    roam: bool
    activity: tuple[float, ...] = ()  # factor of the motion in each phase; empty: 1
    zoom: tuple[float, ...] = ()  # nearness of the camera in each phase, -1 far to 1 near; empty: 0
    smoky: frozenset[int] = frozenset({2})  # phases with coagulation
    station: Station = Station()  # positions of arms that roam


TECHNIQUES = msgspec.convert(read_own_yaml(beside(__file__, "techniques.yaml")), dict[str, Technique])
"""Techniques by name, from `techniques.yaml`."""
_WIDEST = {kind: shape[3] for kind, shape in instruments.SHAPES.items()} | laparoscopic.WIDEST | slender.WIDEST
_FLEX = dict.fromkeys(instruments.KINDS, 1.0) | laparoscopic.FLEX


def tool(kind: str, scale: float, model: int = 0, *, real: bool = False) -> Tool:
    """Build the plates of an instrument, a key of `VERBS`, at `scale` pixels per mm.

    `model` is any number; models of straight and thin kinds differ in shape, models of robotic kinds in wear. With
    `real` proportions, models of all kinds differ in shape.
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
