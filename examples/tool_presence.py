"""Tool presence: the classes of the site's class map that are visible anywhere in the frame.

    cp examples/tool_presence.py shared_components/tasks/

docs/how-to/add-a-task.md explains each member and how to train with this task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared_components.common.arguments import between
from shared_components.common.drawing.pictures import resized
from shared_components.common.drawing.sheets import Panel, Sheet
from shared_components.core.card import Card, Metric
from shared_components.core.task import Array, Batch, Frames, Interval, Scores, last_frame, sample_spec
from shared_components.data.samples import Item, SampleSpec

METRICS = (Metric("f1", "F1", True, "%", 100.0, 2),)
DEFINITIONS = {
    "f1": "2 TP / (2 TP + FP + FN) of each class over all frames; classes that never occur are left out",
    "mean": "mean over all classes except the background",
}


def build(
    *, classes: Sequence[str], threshold: float = 0.5, frames: Frames = 1, interval: Interval = 0.0
) -> ToolPresence:
    """Return the task.

    Args:
        classes: Class names by id, background first.
        threshold: Smallest probability of a visible class.
        frames: Number of frames in a sample.
        interval: Seconds between two frames of a sample.

    Raises:
        ValueError: There are no classes, or a number is out of range.
    """
    if len(classes) < 2:
        raise ValueError("tool_presence needs a background and a class; the site's data set has no class map")
    between("tool_presence", "threshold", threshold, 0, 1, ends="()")
    spec = sample_spec("tool_presence", ("label",), frames=frames, interval=interval)
    return ToolPresence(tuple(classes), threshold, spec)


@dataclass(frozen=True)
class ToolPresence:
    """Implement `task.Task`: a prediction is bool (C,), and a score is a pair of prediction and ground truth."""

    classes: tuple[str, ...]
    threshold: float
    spec: SampleSpec
    metrics = METRICS
    definitions = DEFINITIONS
    prompting = None

    @property
    def card(self) -> Card:
        """Return the card with the class map."""
        return Card("tool_presence", self.classes, frames=self.spec.frames)

    @property
    def channels(self) -> int:
        """Return one channel per class; the background is trained but not scored."""
        return len(self.classes)

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the batch: this task has no random inputs."""
        return batch

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return logits (B, C), the mean of the network's (B, C, H, W) over all pixels."""
        return network(batch["image"]).float().mean((2, 3))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the binary cross-entropy of each class."""
        return F.binary_cross_entropy_with_logits(outputs, self._seen(batch["label"]).to(outputs))

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Array]:
        """Return the visible classes of each frame."""
        return list((outputs.sigmoid() >= self.threshold).cpu().numpy())

    def score(self, answer: Array, item: Item, *, quick: bool) -> tuple[Array, Array]:
        """Return prediction and ground truth; F1 needs all frames."""
        return answer, self._seen(torch.from_numpy(item.targets["label"])[None])[0].numpy()

    def rows(self, score: tuple[Array, Array]) -> list[dict[str, Any]]:
        """Return one row per class except the background."""
        pairs = zip(self.classes, *score, strict=True)
        return [{"class": name, "predicted": int(a), "true": int(b)} for name, a, b in pairs][1:]

    def summarise(self, scores: Sequence[tuple[Array, Array]]) -> Scores:
        """Compute F1 over all frames."""
        f1 = {name: self._f1(scores, column) for column, name in enumerate(self.classes) if column}
        known = [value for value in f1.values() if value is not None]
        return {"f1": {**f1, "mean": math.fsum(known) / len(known) if known else None}, "frames": len(scores)}

    def per_video(self, scores: Sequence[tuple[Array, Array]]) -> Mapping[str, Mapping[str, float]]:
        """Return nothing: F1 is computed over all frames."""
        return {}

    def charts(self, scores: Sequence[tuple[Array, Array]]) -> Mapping[str, Array]:
        """Return no charts."""
        return {}

    def files(self, answer: Array, image: Array) -> dict[str, Array]:
        """Return the frame with the names of the visible classes."""
        return {"overlays": self._written(image, {"seen": answer})}

    def visible(self, answer: Array) -> dict[str, float]:
        """Return nothing: the task does not learn the area of a class."""
        return {}

    def sheet(self, answer: Array, item: Item) -> Sheet:
        """Write the ground truth and the prediction on a frame each."""
        image = resized(last_frame(item), 400)
        _, truth = self.score(answer, item, quick=True)
        written = {"truth": {"true": truth}, "prediction": {"predicted": answer}}
        panels = [Panel(name, self._written(image, lines)) for name, lines in written.items()]
        return Sheet((Panel("frame", image), *panels))

    def _seen(self, label: Tensor) -> Tensor:
        """Return the classes in label maps: (B, H, W) ids -> bool (B, C)."""
        classes = range(len(self.classes))
        return torch.stack([(label == number).flatten(1).any(1) for number in classes], 1)

    @staticmethod
    def _f1(scores: Sequence[tuple[Array, Array]], column: int) -> float | None:
        pairs = [(bool(answer[column]), bool(truth[column])) for answer, truth in scores]
        hits, wrong = pairs.count((True, True)), sum(a != b for a, b in pairs)
        return 2 * hits / (2 * hits + wrong) if hits or wrong else None

    def _written(self, image: Array, lines: Mapping[str, Array]) -> Array:
        picture = image.copy()
        for row, (title, seen) in enumerate(lines.items(), start=1):
            names = [name for name, there in list(zip(self.classes, seen, strict=True))[1:] if there]
            text = f"{title}: {', '.join(names) or 'none'}"
            cv2.putText(picture, text, (4, 16 * row), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 255, 255), 1)
        return picture
