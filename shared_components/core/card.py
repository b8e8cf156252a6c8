"""Describe tasks and metrics, so that reports, tables, progress lines and model selection work for any task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

DASH = "–"
_PLAIN_DIGITS = 3


@dataclass(frozen=True)
class Metric:
    """One metric. Tables for papers have scaled numbers (Dice 40.23 %), reports plain numbers (Dice 0.402)."""

    name: str  # key in the records, such as ``dice``
    label: str  # name for people
    higher_is_better: bool  # direction for model selection, marks, worst sites and wording
    unit: str = ""  # unit of the scaled number: ``%``, ``px``, ``mm``
    factor: float = 1.0  # factor from the recorded to the scaled number
    digits: int = 3  # decimal places of the scaled number
    in_delta: bool = False  # whether it enters SurgFed's improvement over local training, Eq. (9)

    def better(self, value: float, other: float) -> bool:
        """Return whether a value is better than another; a number is better than NaN."""
        if math.isnan(value) or math.isnan(other):
            return math.isnan(other) and not math.isnan(value)
        return value > other if self.higher_is_better else value < other

    def best(self, values: Iterable[float]) -> float:
        """Return the best value without NaN, or NaN if there is none."""
        return _extreme(values, largest=self.higher_is_better)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst value without NaN, or NaN if there is none."""
        return _extreme(values, largest=not self.higher_is_better)

    @property
    def heading(self) -> str:
        """Label and unit of the scaled number: ``Dice (%)``."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def scaled(self, value: float) -> float:
        """Return the scaled number, for tables of papers."""
        return value * self.factor

    def text(self, value: float) -> str:
        """Format the scaled number, or a dash if it is not finite."""
        return fixed(self.scaled(value), self.digits)

    @property
    def plain_unit(self) -> str:
        """Unit of the plain number; empty if the metric has a factor."""
        return self.unit if self.factor == 1 else ""

    @property
    def plain_heading(self) -> str:
        """Label and unit of the plain number: ``Dice``, ``ASSD px``."""
        return f"{self.label} {self.plain_unit}".strip()

    def plain_text(self, value: float, *, rounder: int = 0) -> str:
        """Format the plain number with ``rounder`` fewer digits, or a dash if it is not finite."""
        return fixed(value, max(0, (self.digits if self.factor == 1 else _PLAIN_DIGITS) - rounder))

    def with_unit(self, value: float, *, rounder: int = 0) -> str:
        """Format the plain number with its unit: ``4.32 mm``."""
        text = self.plain_text(value, rounder=rounder)
        return f"{text} {self.plain_unit}".strip() if math.isfinite(value) else text

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metric:
        """Undo :meth:`to_json`; keys of newer versions are ignored."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


@dataclass(frozen=True)
class Card:
    """Identity of a site's task: compared at enrolment, saved in checkpoints, and used to group tables."""

    kind: str  # file in ``shared_components/tasks``
    outputs: tuple[str, ...] = ()  # class names for segmentation, ``("mm",)`` for depth; may be empty
    inputs: tuple[str, ...] = ("image",)  # inputs of the network
    frames: int = 1  # number of frames in a sample; more than 1 is a clip

    def __str__(self) -> str:
        named = f" of {', '.join(self.outputs)}" if self.outputs else ""
        return f"{self.kind}{named}" + (f" on clips of {self.frames} frames" if self.frames > 1 else "")

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "outputs": list(self.outputs), "inputs": list(self.inputs), "frames": self.frames}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Card:
        """Undo :meth:`to_json`; ValueError for untrusted values that are not a card."""
        values = {"inputs": ["image"], "frames": 1, **values}
        texts = [values.get(key) for key in ("outputs", "inputs")]
        lists = all(isinstance(part, list) and all(isinstance(t, str) for t in part) for part in texts)
        frames = values.get("frames")
        if not isinstance(values.get("kind"), str) or not lists or type(frames) is not int or frames < 1:
            raise ValueError(f"{dict(values)!r:.120} is not a task card; it needs kind, outputs, inputs and frames")
        return cls(values["kind"], tuple(values["outputs"]), tuple(values["inputs"]), frames)


def _extreme(values: Iterable[float], *, largest: bool) -> float:
    known = [value for value in values if not math.isnan(value)]
    return (max if largest else min)(known, default=math.nan)


def fixed(value: float, digits: int) -> str:
    """Format a number with a fixed number of decimal places, never as -0; a dash if it is not finite."""
    return f"{value:z.{digits}f}" if math.isfinite(value) else DASH
