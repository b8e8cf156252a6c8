"""Every instrument there is, by kind, and which kinds the arms of an operation may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared_components.data.synthetic import instruments, laparoscopic
from shared_components.data.synthetic.instruments import Tool

NEEDLE, PROGRASP, SHEARS, MARYLAND = instruments.KINDS
GRASPER, SCISSORS, HOOK, CLIPS, STAPLER, SUCTION = laparoscopic.KINDS
VERBS = {
    NEEDLE: "drive", PROGRASP: "grasp", SHEARS: "cut", MARYLAND: "coagulate", GRASPER: "grasp", SCISSORS: "cut",
    HOOK: "dissect", CLIPS: "clip", STAPLER: "staple", SUCTION: "aspirate",
}  # fmt: skip
Hands = Mapping[int, tuple[tuple[str | None, ...], ...]]


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
    """

    hands: Hands
    roam: bool
    vigour: tuple[float, ...] = ()
    zoom: tuple[float, ...] = ()
    fumes: frozenset[int] = frozenset({2})


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
    "cholecystectomy": Custom(
        _CHOLECYSTECTOMY, roam=True, vigour=(1.3, 0.6, 0.35, 0.8, 1.2, 1.0, 1.6),
        zoom=(-1.5, 0.8, 1.5, 0.3, -0.4, 0.0, -1.5), fumes=frozenset({1, 3, 5}),
    ),
    "appendectomy": Custom(_APPENDECTOMY, roam=True, fumes=frozenset({1})),
}  # fmt: skip


def tool(kind: str, scale: float, model: int = 0) -> Tool:
    """Carve the plates of one kind at `scale` pixels per mm.

    Args:
        model: any number; kinds have a few models that differ in shape (straight ones) or in wear (a robot's).
    """
    if kind in instruments.KINDS:
        return instruments.robotic_tool(kind, scale, model % instruments.MODELS)
    return laparoscopic.straight_tool(kind, scale, model % laparoscopic.MODELS)


def widest(kind: str) -> float:
    """Return the largest opening of a kind's jaws in radians."""
    return instruments.widest(kind) if kind in instruments.KINDS else laparoscopic.widest(kind)


def flex(kind: str) -> float:
    """Return how far a kind's wrist bends, 1 as a robot's."""
    return 1.0 if kind in instruments.KINDS else laparoscopic.FLEX.get(kind, 0.0)
