"""Share code between classification tasks of frames, clips and videos: scores by video and class weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.core.card import Metric
from shared_components.core.ranges import AboveZero
from shared_components.core.task import Array, Batch, Scores, WithoutBoxes, outputs_of
from shared_components.core.video_metrics import mean_known, spread

Weights = Mapping[str, AboveZero]  # loss weights by class
CHANCE = "chance"  # key of the chance-level scores in a record: constant or random predictions


@dataclass(frozen=True, eq=False)
class LabelScore:
    """Prediction and truth of a sample; metrics are computed after all samples."""

    video: str  # video and number as in `samples.Item`
    number: int
    scores: Array  # float32 (T, C) in [0, 1] for T labels; T is 1 for a frame, a clip or a video
    truth: Array  # bool (T, C), or int64 (T,) class ids


class Labels(WithoutBoxes):
    """Base of classification tasks; ``classes`` are all classes, without a background."""

    classes: tuple[str, ...]

    @property
    def channels(self) -> int:
        return len(self.classes)

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return logits, with the classes in the last axis."""
        return outputs_of(network, batch)


def by_video(scores: Sequence[LabelScore]) -> dict[str, tuple[Array, Array]]:
    """Concatenate the scores (N, C) and the truth (N, ...) by video; ValueError without samples."""
    if not scores:
        raise ValueError("no frames to summarise; the split has no labelled frames")
    samples: dict[str, list[LabelScore]] = {}
    for score in scores:
        samples.setdefault(score.video, []).append(score)
    return {
        video: (np.concatenate([score.scores for score in own]), np.concatenate([score.truth for score in own]))
        for video, own in samples.items()
    }


def over_videos(metrics: Sequence[Metric], videos: Mapping[str, Mapping[str, float]], frames: int) -> Scores:
    """Return a record of the means over videos, without NaN.

    ``{metric: {"mean": mean or None}, "std": {metric: population standard deviation or None}, "frames": frames,
    "videos": {"count": count}}``.
    """
    record: Scores = {"std": {}}
    for metric in metrics:
        values = np.array([numbers[metric.name] for numbers in videos.values()])
        record[metric.name] = {"mean": none_for_nan(mean_known(values))}
        record["std"][metric.name] = none_for_nan(spread(values))
    return {**record, "frames": frames, "videos": {"count": len(videos)}}


def none_for_nan(value: float) -> float | None:
    """Return a number as a JSON value: None for NaN."""
    return None if math.isnan(value) else float(value)


def check_classes(task: str, classes: Sequence[str]) -> None:
    """Raise ValueError for fewer than two classes, and for a comma in a name, which separates names in checkpoints."""
    if len(classes) < 2:
        raise ValueError(f"{task} needs two classes; the site's data set has {len(classes)}")
    if wrong := next((name for name in classes if "," in name), ""):
        raise ValueError(f"{task}: class {wrong!r} contains a comma; write it with '/' instead")


def class_weights(weights: Weights | None, classes: Sequence[str]) -> dict[str, float]:
    """Return each class's loss weight, by default 1, without unknown names."""
    return {name: float((weights or {}).get(name, 1.0)) for name in classes}


def weight_tensor(weights: Mapping[str, float], like: Tensor) -> Tensor:
    """Return weights (C,) float32 on the device of a tensor."""
    return torch.tensor(list(weights.values()), dtype=torch.float32, device=like.device)
