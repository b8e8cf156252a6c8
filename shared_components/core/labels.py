"""What tasks of labels of frames, clips and videos share: scores by video, their means and spreads, and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.arguments import between
from shared_components.core.card import Metric
from shared_components.core.prompting import Prompting
from shared_components.core.task import Answer, Array, Batch, Scores, outputs_of
from shared_components.core.video_metrics import mean_known, spread

CHANCE = "chance"
"""In a record, the scores of answers without a look: the same for all samples, or guesses."""


@dataclass(frozen=True, eq=False)
class LabelScore:
    """A sample's prediction and truth, of which scores are made once all are there.

    Attributes:
        video, number: Of the sample, see `samples.Item`.
        scores: float32 (T, C) in [0, 1], of the T frames that count: 1 of a frame, a clip or a whole video's label.
        truth: bool (T, C), or int64 (T,) class ids.
    """

    video: str
    number: int
    scores: Array
    truth: Array


class Labels:
    """What these tasks have in common; ``classes`` are all that may be, without a background."""

    classes: tuple[str, ...]
    prompting: Prompting | None = None

    @property
    def channels(self) -> int:
        """One per class."""
        return len(self.classes)

    def boxes(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Return no boxes: no network is prompted for a label."""
        raise NotImplementedError(f"{type(self).__name__} prompts no network")

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Nothing is left to chance."""
        return batch

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return logits, the classes last."""
        return outputs_of(network, batch)

    def visible(self, answer: Answer) -> dict[str, float]:
        """Return nothing: how much of the picture a label takes is not learnt."""
        return {}


def by_video(scores: Sequence[LabelScore]) -> dict[str, tuple[Array, Array]]:
    """Join the scores (N, C) and the truth (N, ...) of each video's frames, videos in the order of their first ones.

    Raises:
        ValueError: There is no sample.
    """
    if not scores:
        raise ValueError("no frames to summarise; the split has no labelled frames")
    found: dict[str, list[LabelScore]] = {}
    for score in scores:
        found.setdefault(score.video, []).append(score)
    return {
        video: (np.concatenate([one.scores for one in of]), np.concatenate([one.truth for one in of]))
        for video, of in found.items()
    }


def over_videos(metrics: Sequence[Metric], videos: Mapping[str, Mapping[str, float]], frames: int) -> Scores:
    """Return a record of the means over videos of their numbers; NaN is not counted.

    Returns:
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
    """Return a number as JSON holds it."""
    return None if math.isnan(value) else float(value)


def check_classes(task: str, classes: Sequence[str]) -> None:
    """Refuse fewer than two classes, and a name with a comma, which parts the names in a checkpoint; by ValueError."""
    if len(classes) < 2:
        raise ValueError(f"{task} needs two classes; the site's data set has {len(classes)}")
    if odd := next((name for name in classes if "," in name), ""):
        raise ValueError(f"{task}: class {odd!r} holds a comma; write it with '/' instead")


def check_weights(task: str, weights: Mapping[str, float] | None, classes: Sequence[str]) -> dict[str, float]:
    """Return each class's weight in the loss, 1 where there are none; names that `classes` lacks are no harm.

    One set of weights serves sites whose classes differ.

    Raises:
        ValueError: It is no table, or a weight is no number above 0.
    """
    if weights is not None and not isinstance(weights, Mapping):
        raise ValueError(f"{task}: weights is {weights!r}; write a table of class names and numbers")
    for name, weight in (weights or {}).items():
        between(task, f"weights.{name}", weight, 0, ends="()")
    return {name: float((weights or {}).get(name, 1.0)) for name in classes}


def weight_tensor(weights: Mapping[str, float], like: Tensor) -> Tensor:
    """Return weights (C,) float32 where a tensor lies."""
    return torch.tensor(list(weights.values()), dtype=torch.float32, device=like.device)
