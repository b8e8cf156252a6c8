"""A task's description for code that handles any task: a card that says what is learned, and rows of metrics.

Reports, tables, charts, progress lines and the choice of the best model read these and depend on no task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

DASH = "–"
_PLAIN_DIGITS = 3


@dataclass(frozen=True)
class Metric:
    """One metric: its name in the records, and how people read it.

    Papers' tables write a number scaled: times ``factor``, with ``digits`` and ``unit`` (Dice 40.23 %). A run's
    report and progress lines write it as recorded: without a factor just the same, with one as a share of three
    digits and no unit (Dice 0.402).

    Attributes:
        name: Its key in the records, such as ``dice``.
        label: What people call it.
        higher_is_better: The direction; the best model, marks, worst sites and wording follow it.
        unit: Of the scaled number: ``%``, ``px``, ``mm``.
        factor: From the recorded number to the scaled one.
        digits: After the point of the scaled number.
        in_delta: Whether it enters SurgFed's improvement over local training, Eq. (9).
    """

    name: str
    label: str
    higher_is_better: bool
    unit: str = ""
    factor: float = 1.0
    digits: int = 3
    in_delta: bool = False

    def better(self, value: float, other: float) -> bool:
        """Return whether a value is better than another; a number is better than NaN."""
        if math.isnan(value) or math.isnan(other):
            return math.isnan(other) and not math.isnan(value)
        return value > other if self.higher_is_better else value < other

    def best(self, values: Iterable[float]) -> float:
        """Return the best of the values that are not NaN; NaN where there is none."""
        return _extreme(values, largest=self.higher_is_better)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of the values that are not NaN; NaN where there is none."""
        return _extreme(values, largest=not self.higher_is_better)

    @property
    def heading(self) -> str:
        """Label and unit of the scaled number: ``Dice (%)``."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def scaled(self, value: float) -> float:
        """Return the number of the papers' tables."""
        return value * self.factor

    def text(self, value: float) -> str:
        """Write the scaled number; a dash where there is none."""
        return fixed(self.scaled(value), self.digits)

    @property
    def plain_unit(self) -> str:
        """Unit of the number as recorded; a scaled metric's recorded number has none."""
        return self.unit if self.factor == 1 else ""

    @property
    def plain_heading(self) -> str:
        """Label and unit of the number as recorded: ``Dice``, ``ASSD px``."""
        return f"{self.label} {self.plain_unit}".strip()

    @property
    def plain_digits(self) -> int:
        """Digits of the number as recorded."""
        return self.digits if self.factor == 1 else _PLAIN_DIGITS

    def plain_text(self, value: float, *, rounder: int = 0) -> str:
        """Write the number as recorded, with ``rounder`` digits fewer than usual; a dash where there is none."""
        return fixed(value, max(0, self.plain_digits - rounder))

    def said(self, value: float, *, rounder: int = 0) -> str:
        """Write the number as recorded with its unit, as a sentence needs it: ``4.32 mm``."""
        text = self.plain_text(value, rounder=rounder)
        return f"{text} {self.plain_unit}".strip() if math.isfinite(value) else text

    def to_json(self) -> dict[str, Any]:
        """Return plain values by field name."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metric:
        """Undo :meth:`to_json`; keys of later versions are left out."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


@dataclass(frozen=True)
class Card:
    """What makes two sites' tasks the same: compared at enrolment, kept in checkpoints, groups the tables.

    Attributes:
        kind: File in ``shared_components/tasks``.
        outputs: Class names of a segmentation, ``("mm",)`` of depth; empty where nothing is named.
        inputs: What the network is given.
        frames: Frames of a sample; 1 is a picture, more a clip.
    """

    kind: str
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ("image",)
    frames: int = 1

    def __str__(self) -> str:
        named = f" of {', '.join(self.outputs)}" if self.outputs else ""
        return f"{self.kind}{named}" + (f" on clips of {self.frames} frames" if self.frames > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "outputs": list(self.outputs), "inputs": list(self.inputs), "frames": self.frames}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Card:
        """Undo :meth:`to_json`; what a site sends is checked.

        Raises:
            ValueError: It is no card.
        """
        values = {"inputs": ["image"], "frames": 1, **values}
        texts = [values.get(key) for key in ("outputs", "inputs")]
        lists = all(isinstance(part, list) and all(isinstance(t, str) for t in part) for part in texts)
        frames = values.get("frames")
        if not isinstance(values.get("kind"), str) or not lists or type(frames) is not int or frames < 1:
            raise ValueError(f"{dict(values)!r:.120} is no task card: kind, outputs, inputs and frames are due")
        return cls(values["kind"], tuple(values["outputs"]), tuple(values["inputs"]), frames)


def _extreme(values: Iterable[float], *, largest: bool) -> float:
    known = [value for value in values if not math.isnan(value)]
    return (max if largest else min)(known, default=math.nan)


def fixed(value: float, digits: int) -> str:
    """Write a number with a fixed count of digits after the point, never -0; a dash if it is not finite."""
    return f"{value:z.{digits}f}" if math.isfinite(value) else DASH
