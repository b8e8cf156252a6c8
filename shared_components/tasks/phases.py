"""Surgical phase recognition: the phase of each frame (Cholec80).

Predictions are for single frames, for the last frames of clips, or for every frame of a sequence. TeCNO (Czempiel et
al., MICCAI 2020) first trains a frame network, then stages of causal convolutions over its features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from shared_components.common.drawing.sheets import Sheet
from shared_components.core import labels
from shared_components.core.card import Card, Metric
from shared_components.core.labels import Labels, LabelScore, Weights, by_video, none_for_nan
from shared_components.core.task import Array, Batch, Frames, Interval, Scores, last_frame, sample_spec
from shared_components.core.video_metrics import confusion, f1_scores, mean_known, phase_scores, precisions, recalls
from shared_components.data.files.classes import IGNORED
from shared_components.data.samples import Item, Padding, SampleSpec, TargetsOf

METRICS = (
    Metric("f1", "F1", True, "%", 100.0, 2),
    Metric("accuracy", "accuracy", True, "%", 100.0, 2),
    Metric("precision", "precision", True, "%", 100.0, 2),
    Metric("recall", "recall", True, "%", 100.0, 2),
    Metric("macro_f1", "macro F1", True, "%", 100.0, 2),
)
DEFINITIONS = {
    "f1": "harmonic mean of mean precision and mean recall, per video; mean over videos",
    "accuracy": "share of correct frames, per video; mean over videos",
    "precision": "mean over the video's phases, 0 if a phase is never predicted; mean over videos",
    "recall": "mean over the video's phases; mean over videos",
    "macro_f1": "2 TP / (2 TP + FP + FN) over all frames; mean over phases that occur or are predicted",
    "std": "population standard deviation over videos",
}


def build(
    *,
    classes: Sequence[str],
    weights: Weights | None = None,
    every_frame: bool = False,
    frames: Frames = 1,
    interval: Interval = 0.0,
    padding: Padding = "first",
    targets_of: TargetsOf = "last",
) -> Phases:
    """Return the task.

    Args:
        classes: Phase names by number.
        weights: Class weights in the cross-entropy, by name; other classes have 1.
        every_frame: Score every frame of a sample, which is then a whole video; else its last frame.
        frames, interval, padding, targets_of: Of a sample's clip, see `samples.SampleSpec`.

    Raises ValueError without classes.
    """
    labels.check_classes("phases", classes)
    spec = sample_spec("phases", ("phase",), frames=frames, interval=interval, padding=padding, targets_of=targets_of)
    return Phases(tuple(classes), labels.class_weights(weights, classes), every_frame, spec)


@dataclass(frozen=True)
class Phases(Labels):
    """See `task.Task`. A prediction is float32 (T, C), the probabilities per scored frame; a clip has T = 1."""

    classes: tuple[str, ...]
    weights: Mapping[str, float] = field(hash=False)
    every_frame: bool
    spec: SampleSpec
    metrics = METRICS
    definitions = DEFINITIONS

    @cached_property
    def card(self) -> Card:
        return Card("phases", self.classes, frames=self.spec.frames)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the weighted cross-entropy, averaged over stages; frames labelled `IGNORED` are ignored.

        Logits are (B, C), (B, T, C) for all frames, or (S, B, T, C) for S stages; "phase" is int64 (B,) or (B, T).
        """
        stages = outputs if outputs.dim() == 4 else outputs[None]
        losses = [self._loss(stage, batch["phase"].to(outputs.device)) for stage in stages]
        return sum(losses[1:], losses[0]) / len(losses)

    def _loss(self, logits: Tensor, phase: Tensor) -> Tensor:
        if logits.dim() == 3 and phase.dim() == 1:
            logits = logits[:, -1]  # (B, T, C) -> (B, C)
        elif logits.dim() == 2 and phase.dim() == 2:
            phase = phase[:, -1]  # (B, T) -> (B,)
        logits, phase = logits.flatten(0, -2).float(), phase.flatten().long()  # (B, T, C) -> (B * T, C)
        if bool((phase == IGNORED).all()):
            return logits.sum() * 0
        weights = labels.weight_tensor(self.weights, logits)
        return F.cross_entropy(logits, phase, weights, ignore_index=IGNORED)

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Array]:
        """Return the last stage's probabilities; `sizes` is not used."""
        last = outputs[-1] if outputs.dim() == 4 else outputs  # (S, B, T, C) -> (B, T, C)
        sequence = last[:, None] if last.dim() == 2 else last  # (B, C) -> (B, 1, C)
        chosen = sequence if self.every_frame else sequence[:, -1:]
        return list(chosen.float().softmax(-1).cpu().numpy())

    def score(self, answer: Array, item: Item, *, quick: bool) -> LabelScore:
        """Keep probabilities and ground truth of the labelled frames."""
        truth = np.atleast_1d(np.asarray(item.targets["phase"])).astype(np.int64)[-len(answer) :]
        known = truth != IGNORED
        return LabelScore(item.video, item.number, answer[-len(truth) :][known], truth[known])

    def rows(self, score: LabelScore) -> list[dict[str, Any]]:
        """Return a row per frame: the true phase, the predicted phase and its probability."""
        rows = []
        for scores, true in zip(score.scores, score.truth, strict=True):
            best = int(scores.argmax())
            row = {"truth": self.classes[true], "predicted": self.classes[best], "probability": float(scores.max())}
            rows.append({**row, "right": int(best == true)})
        return rows

    def summarise(self, scores: Sequence[LabelScore]) -> Scores:
        """Return means and standard deviations over videos, and each phase's scores over all frames."""
        numbers, counts = self.per_video(scores), self.counts(scores)
        record = labels.over_videos(METRICS[:-1], numbers, sum(len(score.truth) for score in scores))
        per_class = {"precision": precisions(counts), "recall": recalls(counts), "f1": f1_scores(counts)}
        rows = [{key: none_for_nan(row[c]) for key, row in per_class.items()} for c in range(len(self.classes))]
        classes = dict(zip(self.classes, rows, strict=True))
        return {**record, "macro_f1": {"mean": none_for_nan(mean_known(per_class["f1"]))}, "classes": classes}

    def per_video(self, scores: Sequence[LabelScore]) -> dict[str, dict[str, float]]:
        """Return the metrics of each video, for paired tests."""
        pairs = {v: (p.argmax(1), truth) for v, (p, truth) in by_video(scores).items() if len(truth)}
        return {video: phase_scores(*pair, len(self.classes)) for video, pair in pairs.items()}

    def counts(self, scores: Sequence[LabelScore]) -> Array:
        """Return the confusion matrix (C, C): rows are true phases, columns are predicted phases."""
        pairs = list(by_video(scores).values())
        prediction = np.concatenate([probabilities.argmax(1) for probabilities, _ in pairs])
        return confusion(prediction, np.concatenate([truth for _, truth in pairs]), len(self.classes))

    def charts(self, scores: Sequence[LabelScore]) -> Mapping[str, Array]:
        """Draw each video's timeline of true and predicted phases, and the confusion matrix."""
        from shared_components.reporting.labels import confusion_table, timeline

        timelines = {
            f"timeline-{video}".replace("/", "_"): timeline(truth, probabilities.argmax(1), self.classes, title=video)
            for video, (probabilities, truth) in by_video(scores).items()
        }
        return {**timelines, "confusion": confusion_table(self.counts(scores), self.classes)}

    def files(self, answer: Array, image: Array) -> dict[str, Array]:
        """Return the frame with the phase probabilities and, for a sequence, its timeline below."""
        from shared_components.reporting.labels import predicted_phases

        return {"overlays": predicted_phases(image, answer, self.classes)}

    def sheet(self, answer: Array, item: Item) -> Sheet:
        """Draw the frame with true and predicted phase; for a sequence, their timelines."""
        from shared_components.reporting.labels import one_sheet, phases_sheet

        score = self.score(answer, item, quick=True)
        if len(score.truth) == 1:
            return one_sheet(last_frame(item), int(score.truth[0]), score.scores[0], self.classes)
        return phases_sheet(last_frame(item), score.truth, score.scores.argmax(1), self.classes)
