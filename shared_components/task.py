"""What is learned at a site: what a label means, the loss, the metrics, and how a prediction is shown.

A bundle says which kinds of task its network can learn and the numbers of their losses (`tasks:` in train.yaml); a
site says which one it has (`task:` in site.yaml). A task is their product. One file per kind in
``shared_components/tasks``, found by listing.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.arguments import between
from shared_components.data.sites import Asks, Item

Array = np.ndarray
Batch = Mapping[str, Tensor]
Answer = Any  # a task's prediction for one sample, at the sample's own size
Scores = dict[str, Any]  # {metric: {output: value or None, ..., "mean": value or None}, "frames": count, ...}


@dataclass(frozen=True)
class Metric:
    """The one place of a metric's name, label, direction, unit and format.

    Attributes:
        name: Key in every record.
        label: What people read.
        higher_is_better: Its direction, for selection, sorting and marks.
        unit: Of the value times ``factor``.
        factor: What tables of a comparison multiply by, 100 for percent.
        digits: Decimals of the unscaled value.
    """

    name: str
    label: str
    higher_is_better: bool
    unit: str = ""
    factor: float = 1.0
    digits: int = 3

    def better(self, value: float, other: float) -> bool:
        """Say whether a value is better than another; nothing is better than a number that is not there."""
        if math.isnan(value):
            return False
        return math.isnan(other) or (value > other if self.higher_is_better else value < other)

    def best(self, values: Iterable[float]) -> float:
        """Return the best value; NaN where there is none."""
        return self._extreme(values, max if self.higher_is_better else min)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst value; NaN where there is none."""
        return self._extreme(values, min if self.higher_is_better else max)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metric:
        """Undo :meth:`to_json`."""
        return cls(**values)

    @staticmethod
    def _extreme(values: Iterable[float], choose: Any) -> float:
        return choose((value for value in values if not math.isnan(value)), default=math.nan)


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
        return {
            "kind": self.kind,
            "outputs": list(self.outputs),
            "inputs": list(self.inputs),
            "frames": self.frames,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Card:
        """Undo :meth:`to_json`; what a site sends is checked.

        Raises:
            ValueError: It is no card.
        """
        texts = [values.get(key) for key in ("outputs", "inputs")]
        lists = all(isinstance(part, list) and all(isinstance(t, str) for t in part) for part in texts)
        frames = values.get("frames")
        if not isinstance(values.get("kind"), str) or not lists or type(frames) is not int or frames < 1:
            raise ValueError(
                f"{dict(values)!r:.120} is no task card: kind, outputs, inputs and frames are due"
            )
        return cls(values["kind"], tuple(values["outputs"]), tuple(values["inputs"]), frames)


class Task(Protocol):
    """What every file of ``shared_components/tasks`` builds. Tasks keep no state.

    Attributes:
        card: What is learned.
        metrics: The first selects the best model.
        asks: What the data must yield.
        channels: Of the network's last layer.
        definitions: How each number is defined, written beside the numbers.
    """

    @property
    def card(self) -> Card: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def asks(self) -> Asks: ...
    @property
    def channels(self) -> int: ...
    @property
    def definitions(self) -> Mapping[str, str]: ...

    def draw(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Add what chance decides in a batch, such as hidden patches; most tasks add nothing."""
        ...

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the network's outputs for a batch, in the task's own terms (logits, millimetres, pixels)."""
        ...

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the scalar that training minimises."""
        ...

    def answers(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Answer]:
        """Return one prediction per sample, at the (height, width) asked for."""
        ...

    def score(self, answer: Answer, item: Item, *, quick: bool) -> Any:
        """Score one sample; ``quick`` leaves out what takes long."""
        ...

    def rows(self, score: Any) -> list[dict[str, Any]]:
        """Return one sample's score as rows of a table; a value that is not counted is NaN."""
        ...

    def summarise(self, scores: Sequence[Any]) -> Scores:
        """Return the numbers of a record; a metric of ``metrics`` that was not measured is left out."""
        ...

    def picture(self, answer: Answer, item: Item) -> Array:
        """Draw frame, truth and prediction beside each other: uint8 RGB (H, W, 3)."""
        ...


def task_kinds() -> list[str]:
    """List the kinds of task by listing the folder; adding a file there is all that a new kind needs."""
    import shared_components.tasks as folder

    return sorted(module.name for module in pkgutil.iter_modules(folder.__path__))


def make_task(kind: str, numbers: Mapping[str, Any] | None = None, *, classes: Sequence[str] = ()) -> Task:
    """Build a task.

    Args:
        kind: A file of ``shared_components/tasks``.
        numbers: Keyword arguments of that file's ``build``.
        classes: The site's class names, background first; empty where it has none.

    Raises:
        ValueError: There is no such kind, or a number is wrong or unknown.
    """
    if kind not in task_kinds():
        raise ValueError(f"task {kind!r} does not exist; there are {', '.join(task_kinds())}")
    build = importlib.import_module(f"shared_components.tasks.{kind}").build
    try:
        return build(classes=tuple(classes), **(numbers or {}))
    except TypeError as error:
        raise ValueError(f"task {kind!r}: {error}") from error


def check_tasks(tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse kinds and numbers that are wrong whatever site has the task.

    Raises:
        ValueError: One sentence.
    """
    for kind, numbers in tasks.items():
        make_task(kind, numbers, classes=("background", "object"))


def choose_task(
    tasks: Mapping[str, Mapping[str, Any]], wanted: str, *, classes: Sequence[str], who: str
) -> Task:
    """Build the task that a site has and a bundle can learn.

    Args:
        tasks: A bundle's kinds and their numbers; the first is what a site has that names none.
        wanted: The kind that the site names, or nothing.
        classes: The site's class names.
        who: Names the site in the sentence.

    Raises:
        ValueError: The bundle does not learn this kind.
    """
    kind = wanted or next(iter(tasks))
    if kind not in tasks:
        raise ValueError(
            f"{who}: the task is {kind!r}, and this bundle learns {', '.join(tasks)}; correct 'task' in site.yaml, "
            "or choose a job with another bundle"
        )
    return make_task(kind, tasks[kind], classes=classes)


def asks(kind: str, targets: tuple[str, ...], *, frames: object, interval: object) -> Asks:
    """Return what a kind of task asks of the data, its numbers checked.

    Args:
        kind: Names the task in the sentence.
        targets: Names of its targets.
        frames: Frames of a sample; more than one are a clip.
        interval: Seconds between the frames of a clip.

    Raises:
        ValueError: A number is wrong, or a clip has no interval.
    """
    between(kind, "frames", frames, 1, whole=True)
    between(kind, "interval", interval, 0)
    if frames != 1 and not interval:
        raise ValueError(
            f"{kind}: a clip of {frames} frames needs 'interval', the seconds between two of them"
        )
    return Asks(targets, int(frames), float(interval))  # type: ignore[call-overload, arg-type]  # checked above


def last_frame(item: Item) -> Array:
    """Return the frame that a sample's labels belong to: uint8 (H, W, 3)."""
    return item.images[-1]


def mean_rows(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Scores:
    """Average numbers of frames that have one output: ``{name: {"mean": mean or None}, ..., "frames": count}``.

    NaN is not counted. Raises ValueError where there are no frames.
    """
    if not rows:
        raise ValueError("no frames to summarise; the split has no frames")
    found: Scores = {}
    for name in names:
        known = [row[name] for row in rows if not math.isnan(row[name])]
        found[name] = {"mean": math.fsum(known) / len(known) if known else None}
    return {**found, "frames": len(rows)}
