"""Classification of a clip or a whole video, such as its action (GynSurg) or its grade (FedSurg)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shared_components.common.drawing.sheets import Sheet
from shared_components.core import labels, video_metrics
from shared_components.core.card import Card, Metric
from shared_components.core.labels import CHANCE, Labels, LabelScore, Weights, by_video, none_for_nan
from shared_components.core.ranges import FromZero
from shared_components.core.task import Array, Batch, Frames, Interval, Scores, last_frame, sample_spec
from shared_components.core.video_metrics import confusion, expected_cost, f1_scores
from shared_components.data.files.classes import LABELS
from shared_components.data.samples import Item, Padding, SampleSpec, TargetsOf

TARGETS = {
    LABELS["gynsurg_action"]: "action",
    LABELS["gynsurg_bleeding"]: "bleeding",
    LABELS["gynsurg_smoke"]: "smoke",
    LABELS["appendicitis_grades"]: "grade",
}
"""Key of the classification target, by class names."""
METRICS = (
    Metric("macro_f1", "macro F1", True, "%", 100.0, 2),
    Metric("accuracy", "accuracy", True, "%", 100.0, 2),
    Metric("balanced_accuracy", "balanced accuracy", True, "%", 100.0, 2),
    Metric("f1", "F1 of means", True, "%", 100.0, 2),
)
COST = Metric("expected_cost", "expected cost", False)
DEFINITIONS = {
    "macro_f1": "2 TP / (2 TP + FP + FN) over all samples; mean over classes that occur or are predicted",
    "accuracy": "share of correct samples",
    "balanced_accuracy": "mean recall of the classes that occur",
    "f1": "harmonic mean of mean precision and mean recall of the classes that occur",
    "expected_cost": "mean of |i - j| / (classes - 1) for true grade i and predicted grade j; FedSurg's own matrix was "
    "not found",
    CHANCE: "the better score of two baselines: one class for all samples, and guesses with the class frequencies",
}


def build(
    *,
    classes: Sequence[str],
    target: str = "",
    ordered: bool | None = None,
    cost: FromZero = 0.0,
    weights: Weights | None = None,
    frames: Frames = 1,
    interval: Interval = 0.0,
    padding: Padding = "first",
    targets_of: TargetsOf = "last",
    random_frames: bool = False,
) -> Classification:
    """Return the task.

    Args:
        classes: Class names by number; grades in order.
        target: Name of the target; empty: the classes' target, or ``action``.
        ordered: Treat classes as ordered grades; null: if the target has grades.
        cost: Loss weight of the expected cost of the probabilities; for grades.
        weights: Class weights in the cross-entropy, by name; other classes have 1.
        frames, interval, padding, targets_of, random_frames: Sample settings, see `samples.SampleSpec`.

    Raises ValueError without classes, and for classes of another target.
    """
    labels.check_classes("classification", classes)
    target = _target(target, tuple(classes))
    ordered = target == "grade" if ordered is None else ordered
    if cost and not ordered:
        raise ValueError(f"classification: cost is {cost}, but the classes have no order; set ordered: true")
    spec = sample_spec(
        "classification", (target,), frames=frames, interval=interval, padding=padding, targets_of=targets_of,
        random_frames=random_frames,
    )  # fmt: skip
    weighed = labels.class_weights(weights, classes)
    return Classification(tuple(classes), target, ordered, float(cost), weighed, spec)


def _target(name: str, classes: tuple[str, ...]) -> str:
    """Return the key of the target; ValueError if it is invalid or the classes belong to another target."""
    known = TARGETS.get(classes, "")
    name = name or known or "action"
    if not name.isidentifier():
        raise ValueError(f"classification: target is {name!r}; use an identifier such as 'action'")
    if known and known != name:
        raise ValueError(
            f"classification: target is {name!r}, but the site's {len(classes)} classes ({classes[0]}, ...) belong to "
            f"{known!r}; remove 'target', or correct 'classes' in site.yaml"
        )
    return name


@dataclass(frozen=True)
class Classification(Labels):
    """See `task.Task`. A prediction is float32 (C,), the class probabilities; a score is a `LabelScore`."""

    classes: tuple[str, ...]
    target: str
    ordered: bool
    cost: float
    weights: Mapping[str, float] = field(hash=False)
    spec: SampleSpec
    definitions = DEFINITIONS

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (*METRICS, COST) if self.ordered else METRICS

    @cached_property
    def card(self) -> Card:
        return Card("classification", self.classes, frames=self.spec.frames)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the weighted cross-entropy, and ``cost`` times the expected cost of the probabilities (B, C)."""
        logits, true = outputs.float(), batch[self.target].to(outputs.device).long().flatten()
        loss = F.cross_entropy(logits, true, labels.weight_tensor(self.weights, logits))
        if not self.cost:
            return loss
        places = torch.arange(len(self.classes), device=logits.device)
        costs = (places[None] - true[:, None]).abs() / (len(self.classes) - 1)  # (B, C)
        return loss + self.cost * (logits.softmax(1) * costs).sum(1).mean()

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Array]:
        """Return the probabilities; `sizes` is not used."""
        return list(outputs.float().softmax(1).cpu().numpy())

    def score(self, answer: Array, item: Item, *, quick: bool) -> LabelScore:
        """Keep probabilities and ground truth, since the metrics need all samples."""
        truth = np.asarray(item.targets[self.target]).astype(np.int64).reshape(-1)[-1:]
        return LabelScore(item.video, item.number, answer[None], truth)

    def rows(self, score: LabelScore) -> list[dict[str, Any]]:
        """Return one row: the true class, the predicted class, its probability and, for grades, the signed error."""
        true, best = int(score.truth[0]), int(score.scores[0].argmax())
        row = {"truth": self.classes[true], "predicted": self.classes[best], "probability": float(score.scores.max())}
        return [row | ({"off": best - true} if self.ordered else {"right": int(best == true)})]

    def summarise(self, scores: Sequence[LabelScore]) -> Scores:
        """Return the metrics over all samples, each class's precision, recall, F1 and count, and ``chance``.

        ``chance`` contains each metric's better value of two baselines: one constant class, and random guesses with the
        classes' frequencies. A useful model exceeds it.
        """
        prediction, truth = self._pairs(scores)
        counts = confusion(prediction, truth, len(self.classes))
        precisions, recalls = video_metrics.precisions(counts), video_metrics.recalls(counts)
        per_class = {"precision": precisions, "recall": recalls, "f1": f1_scores(counts)}
        classes = {
            name: {key: none_for_nan(row[c]) for key, row in per_class.items()} | {"samples": int(counts[c].sum())}
            for c, name in enumerate(self.classes)
        }
        values, means, chance = self._values(prediction, truth), {}, {}
        constant = [self._values(np.full_like(truth, c), truth) for c in range(len(self.classes))]
        guesses = {"macro_f1": 1 / len(np.unique(truth))}  # F1 of a guessed class is its share
        for metric in self.metrics:
            best = metric.best([*(scores[metric.name] for scores in constant), guesses.get(metric.name, math.nan)])
            means[metric.name], chance[metric.name] = ({"mean": none_for_nan(v)} for v in (values[metric.name], best))
        return {**means, "frames": len(scores), "classes": classes, CHANCE: chance}

    def _values(self, prediction: Array, truth: Array) -> dict[str, float]:
        C = len(self.classes)
        plain = video_metrics.phase_scores(prediction, truth, C)
        macro_f1 = video_metrics.mean_known(f1_scores(confusion(prediction, truth, C)))
        scores = {"macro_f1": macro_f1, "accuracy": plain["accuracy"], "balanced_accuracy": plain["recall"]}
        return {**scores, "f1": plain["f1"], "expected_cost": expected_cost(prediction, truth, C)}

    def per_video(self, scores: Sequence[LabelScore]) -> dict[str, dict[str, float]]:
        """Return accuracy and expected cost of each video, for paired tests."""
        pairs = {v: (p.argmax(1), truth) for v, (p, truth) in by_video(scores).items()}
        C = len(self.classes)
        return {
            v: {"accuracy": float(np.mean(p == t)), "expected_cost": expected_cost(p, t, C)}
            for v, (p, t) in pairs.items()
        }

    def _pairs(self, scores: Sequence[LabelScore]) -> tuple[Array, Array]:
        pairs = list(by_video(scores).values())
        return np.concatenate([p.argmax(1) for p, _ in pairs]), np.concatenate([truth for _, truth in pairs])

    def charts(self, scores: Sequence[LabelScore]) -> Mapping[str, Array]:
        """Draw the confusion matrix."""
        from shared_components.reporting.labels import confusion_table

        return {"confusion": confusion_table(confusion(*self._pairs(scores), len(self.classes)), self.classes)}

    def files(self, answer: Array, image: Array) -> dict[str, Array]:
        """Return the last frame with the class probabilities."""
        from shared_components.reporting.labels import draw_class_scores

        shown = min(len(self.classes), 7)
        return {"overlays": draw_class_scores(image, answer, self.classes, shown=shown, ranked=False)}

    def sheet(self, answer: Array, item: Item) -> Sheet:
        """Draw the last frame, the true class and the class probabilities."""
        from shared_components.reporting.labels import one_sheet

        score = self.score(answer, item, quick=True)
        return one_sheet(last_frame(item), int(score.truth[0]), answer, self.classes)
