"""Action triplets (instrument, verb, target): multi-label recognition of 100 triplets (CholecT45 and CholecT50).

EndoViT (Batic et al., IJCARS 2024) trains a vision transformer with a focal loss, gamma 3. The metrics follow Nwoye and
Padoy, Data Splits and Metrics for CholecT50 (arXiv 2204.05235).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from shared_components.common.drawing.sheets import Sheet
from shared_components.core.card import Card, Metric
from shared_components.core.labels import Labels, LabelScore, by_video, check_classes, none_for_nan, over_videos
from shared_components.core.task import Array, Batch, Frames, Interval, Scores, last_frame, sample_spec
from shared_components.core.video_metrics import average_precision, average_precisions, component_scores, mean_known
from shared_components.data.files.triplets import COMPONENTS, component_of
from shared_components.data.samples import Item, Padding, SampleSpec

_LABELS = {"i": "instrument", "v": "verb", "t": "target", "iv": "instrument-verb", "it": "instrument-target"}
METRICS = (
    Metric("map", "mAP", True, "%", 100.0, 2),
    Metric("map_classes", "mAP over classes", True, "%", 100.0, 2),
    *(Metric(f"map_{part}", f"mAP {name}", True, "%", 100.0, 2) for part, name in _LABELS.items()),
)
DEFINITIONS = {
    "map": "mean average precision of the video's triplets; mean over videos",
    "map_classes": "average precision over the videos with the triplet; mean over triplets, as ivtmetrics",
    **{f"map_{part}": f"as map, per {name} (highest triplet score)" for part, name in _LABELS.items()},
    "average precision": "sum of (R_n - R_(n-1)) P_n over the thresholds; a triplet that a video lacks is not counted",
    "std": "population standard deviation over videos",
    "one frame": "for a single frame, the average precision of the ranking of its triplets",
}
SHOWN = 5  # number of triplets in a picture, by decreasing probability


def build(
    *,
    classes: Sequence[str],
    loss: Literal["focal", "bce"] = "focal",
    gamma: Annotated[float, Meta(ge=0, le=10)] = 3.0,
    frames: Frames = 1,
    interval: Interval = 0.0,
    padding: Padding = "first",
) -> Triplets:
    """Return the task.

    Args:
        classes: Names of the triplets by their numbers, "instrument/verb/target"; components are scored where they are
            such names.
        loss: ``focal``, or ``bce`` (binary cross-entropy).
        gamma: Focusing parameter of the focal loss; EndoViT uses 3.
        frames, interval, padding: Of a sample's clip, of which the last frame has the labels, see `samples.SampleSpec`.

    Raises ValueError without classes.
    """
    check_classes("triplets", classes)
    spec = sample_spec("triplets", ("triplets",), frames=frames, interval=interval, padding=padding)
    return Triplets(tuple(classes), float(gamma) if loss == "focal" else 0.0, spec)


@dataclass(frozen=True)
class Triplets(Labels):
    """See `task.Task`. A prediction is float32 (C,) in [0, 1], one per triplet; a score is a `LabelScore`."""

    classes: tuple[str, ...]
    gamma: float
    spec: SampleSpec
    definitions = DEFINITIONS

    @cached_property
    def card(self) -> Card:
        return Card("triplets", self.classes, frames=self.spec.frames)

    @cached_property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """Component ids of the triplets, by kind of component; empty if the classes are not triplets."""
        if not all(name.count("/") == 2 for name in self.classes):
            return {}
        return {part: component_of(self.classes, part)[1] for part in COMPONENTS}

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        return METRICS if self.parts else METRICS[:2]

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean over frames and triplets of (1 - p_t)^gamma BCE, where p_t is the probability of the truth.

        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eq. (4) without alpha; gamma 0 is the BCE.
        """
        truth = batch["triplets"].to(outputs.device, outputs.dtype).float()
        losses = F.binary_cross_entropy_with_logits(outputs.float(), truth, reduction="none")  # (B, C)
        # 1 - p_t; clamped, since a power below 1 has an infinite gradient at 0
        wrong = (-torch.expm1(-losses)).clamp_min(1e-12)
        return (wrong**self.gamma * losses).mean() if self.gamma else losses.mean()

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Array]:
        """Return the probabilities; `sizes` is not used."""
        return list(outputs.float().sigmoid().cpu().numpy())

    def score(self, answer: Array, item: Item, *, quick: bool) -> LabelScore:
        """Keep probabilities and ground truth, since average precision needs all frames."""
        truth = np.asarray(item.targets["triplets"]).astype(bool)
        return LabelScore(item.video, item.number, answer[None], truth[None])

    def rows(self, score: LabelScore) -> list[dict[str, Any]]:
        """Return a row per triplet that is present or has a probability of at least 0.5; else one empty row."""
        scores, truth = score.scores[0], score.truth[0]
        chosen = np.flatnonzero(truth | (scores >= 0.5))
        rows = [{"class": self.classes[c], "score": float(scores[c]), "truth": int(truth[c])} for c in chosen]
        return rows or [{"class": "", "score": float("nan"), "truth": 0}]

    def summarise(self, scores: Sequence[LabelScore]) -> Scores:
        """Return means and standard deviations over videos, and each triplet's mean over the videos that contain it."""
        videos = by_video(scores)
        if len(scores) == 1:
            return over_videos(self.metrics, {"": self._ranking_scores(scores[0])}, 1)
        precisions = {video: average_precisions(*pair) for video, pair in videos.items()}
        numbers = {video: self._video_scores(*videos[video], precisions[video]) for video in videos}
        per_class = [mean_known(column) for column in np.stack(list(precisions.values())).T]  # (V, C) -> C of (V,)
        record = over_videos(self.metrics, numbers, len(scores))
        record["map_classes"] = {"mean": none_for_nan(mean_known(np.array(per_class)))}
        del record["std"]["map_classes"]  # not a mean over videos
        return {**record, "classes": dict(zip(self.classes, map(none_for_nan, per_class), strict=True))}

    def per_video(self, scores: Sequence[LabelScore]) -> dict[str, dict[str, float]]:
        """Return the metrics of each video, for paired tests."""
        return {v: self._video_scores(*pair, average_precisions(*pair)) for v, pair in by_video(scores).items()}

    def _video_scores(self, scores: Array, truth: Array, per_class: Array) -> dict[str, float]:
        parts = {
            f"map_{part}": mean_known(average_precisions(component_scores(scores, ids), component_scores(truth, ids)))
            for part, ids in self.parts.items()
        }
        return {"map": mean_known(per_class), "map_classes": float("nan"), **parts}

    def _ranking_scores(self, score: LabelScore) -> dict[str, float]:
        """Score the ranking of the triplets in a single frame."""
        pairs = {"map": (score.scores, score.truth)} | {
            f"map_{part}": (component_scores(score.scores, ids), component_scores(score.truth, ids))
            for part, ids in self.parts.items()
        }
        precisions = {name: average_precision(scores[0], truth[0]) for name, (scores, truth) in pairs.items()}
        return {"map_classes": float("nan"), **precisions}

    def charts(self, scores: Sequence[LabelScore]) -> Mapping[str, Array]:
        return {}

    def files(self, answer: Array, image: Array) -> dict[str, Array]:
        """Return the frame with its most probable triplets."""
        from shared_components.reporting.labels import draw_class_scores

        return {"overlays": draw_class_scores(image, answer, self.classes, shown=SHOWN)}

    def sheet(self, answer: Array, item: Item) -> Sheet:
        """Draw the frame, the true triplets and the most probable triplets."""
        from shared_components.reporting.labels import several_sheet

        truth = np.asarray(item.targets["triplets"]).astype(bool)
        return several_sheet(last_frame(item), truth, answer, self.classes, shown=SHOWN)
