"""Segmentation: every pixel belongs to one class of the site's class map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.arguments import between
from shared_components.common.drawing.palette import class_entries
from shared_components.common.drawing.pictures import legend, overlay
from shared_components.common.drawing.sheets import Sheet
from shared_components.core.card import Card, Metric
from shared_components.core.losses import segmentation_loss
from shared_components.core.metrics import POLICIES, FrameScores, frame_scores, summarise
from shared_components.core.task import Array, Batch, Scores, last_frame, sample_spec
from shared_components.data.samples import Item, SampleSpec

METRICS = (
    Metric("dice", "Dice", True, "%", 100.0, 2),
    Metric("iou", "IoU", True, "%", 100.0, 2),
    Metric("assd", "ASSD", False, "px", digits=2),
    Metric("hd95", "HD95 (medpy)", False, "px", digits=2),
    Metric("hd95_monai", "HD95 (MONAI)", False, "px", digits=2),
)
DEFINITIONS = {
    "dice": "per frame and class twice the overlap over the sum of both areas, then the mean over frames",
    "iou": "per frame and class the overlap over the union, then the mean over frames",
    "assd": "medpy 0.5 and MONAI: mean of both directions' surface distances pooled, in pixels",
    "hd95": "medpy: 95th percentile of both directions' surface distances pooled, in pixels",
    "hd95_monai": "MONAI: larger of the two directions' 95th percentiles, in pixels",
    "mean": "mean over the classes without background",
    "resolution": "of the mask: the logits' argmax enlarged with nearest neighbours",
    "empty, policy diagonal": "empty in both: not counted; in one: Dice and IoU 0, distances the image diagonal",
    "empty, policy paper": "as released by PFedSIS: an empty mask becomes the pixel [0, 0]",
}


def build(
    *,
    classes: Sequence[str],
    cross_entropy: float = 0.7,
    log_iou: float = 0.3,
    dice: float = 0.0,
    balance: float = 0.0,
    empty_policy: str = "diagonal",
    frames: int = 1,
    interval: float = 0.0,
    padding: str = "first",
) -> Segmentation:
    """Return the task.

    Args:
        classes: Names by id, background first.
        cross_entropy: Weight of the cross-entropy (`losses.segmentation_loss`).
        log_iou: Weight of the log of the soft IoU.
        dice: Weight of the soft Dice loss; FedST's Eq. (9) has it beside cross-entropy.
        balance: How much rare classes count in the cross-entropy, 0 (as released) to 1.
        empty_policy: Score of a class that is empty in a frame, one of `metrics.POLICIES`.
        frames, interval, padding: Of a sample's clip, see `samples.SampleSpec`.

    Raises ValueError without classes, and for an unknown policy or a number out of its range.
    """
    if len(classes) < 2:
        raise ValueError("segmentation needs a background and a class; the site's data set has no class map")
    weights = {"cross_entropy": cross_entropy, "log_iou": log_iou, "dice": dice, "balance": balance}
    for name, weight in weights.items():
        between("segmentation", name, weight, 0, 1 if name == "balance" else math.inf)
    if empty_policy not in POLICIES:
        raise ValueError(f"empty_policy is {empty_policy!r}; use one of {', '.join(POLICIES)}")
    spec = sample_spec("segmentation", ("label",), frames=frames, interval=interval, padding=padding)
    return Segmentation(tuple(classes), {n: float(w) for n, w in weights.items()}, empty_policy, spec)


@dataclass(frozen=True)
class Segmentation:
    """See `task.Task`. An answer is a uint8 mask (H, W) of class ids, a score `metrics.FrameScores`."""

    classes: tuple[str, ...]
    weights: Mapping[str, float]
    empty_policy: str
    spec: SampleSpec
    metrics = METRICS
    definitions = DEFINITIONS

    @cached_property
    def card(self) -> Card:
        return Card("segmentation", self.classes, frames=self.spec.frames)

    @property
    def channels(self) -> int:
        """One per class, background included."""
        return len(self.classes)

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return logits (B, C, H, W)."""
        return network(batch["image"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the weighted cross-entropy, log of the soft IoU and Dice loss."""
        return segmentation_loss(outputs, batch["label"], **self.weights)

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Array]:
        """Return uint8 class ids, resized by nearest neighbour."""
        ids = outputs.argmax(1).to(torch.uint8).cpu().numpy()  # (B, C, H, W) -> (B, H, W)
        return [enlarge(one, size) for one, size in zip(ids, sizes, strict=True)]

    def score(self, answer: Array, item: Item, *, quick: bool) -> FrameScores:
        """Score Dice and IoU and, unless ``quick``, distances."""
        classes, truth = range(1, len(self.classes)), item.targets["label"]
        return frame_scores(answer, truth, classes=classes, distances=not quick, policy=self.empty_policy)

    def rows(self, score: FrameScores) -> list[dict[str, Any]]:
        names = [metric.name for metric in METRICS if getattr(score, metric.name) is not None]
        return [
            {
                "class": name,
                **{metric: float(getattr(score, metric)[column]) for metric in names},
                "empty_prediction": int(score.empty_prediction[column]),
                "empty_truth": int(score.empty_truth[column]),
            }
            for column, name in enumerate(self.classes[1:])
        ]

    def summarise(self, scores: Sequence[FrameScores]) -> Scores:
        return summarise(scores, self.classes[1:])

    def files(self, answer: Array, image: Array) -> dict[str, Array]:
        """Return the mask of class ids, and an overlay on the frame with a legend below."""
        names = legend(class_entries(self.classes), width=image.shape[1])
        return {"masks": answer, "overlays": np.concatenate([overlay(image, answer), names])}

    def visible(self, answer: Array) -> dict[str, float]:
        """Return each class's share of the pixels, without the background's."""
        counts = np.bincount(answer.ravel(), minlength=len(self.classes))
        return {name: 100 * int(counts[number]) / answer.size for number, name in enumerate(self.classes) if number}

    def sheet(self, answer: Array, item: Item) -> Sheet:
        """Draw frame, truth, prediction and what is wrong."""
        from shared_components.data.transforms import resize_image
        from shared_components.reporting.overlays import segmentation_sheet

        truth = item.targets["label"]
        image = resize_image(last_frame(item), *truth.shape)  # masks of PFedSIS's test frames are at native size
        return segmentation_sheet(image, truth, answer, self.classes)


def enlarge(ids: Array, size: tuple[int, int]) -> Array:
    """Resize uint8 class ids (h, w) to another (height, width) by nearest neighbour.

    The released PFedSIS evaluation enlarges the logits by nearest neighbour before the argmax, which gives the same.
    The nearest pixel is the one whose centre is nearest, as in the released code at the paper's sizes (512x640 to
    1024x1280).
    """
    if ids.shape == tuple(size):
        return ids
    return np.asarray(cv2.resize(ids, (size[1], size[0]), interpolation=cv2.INTER_NEAREST_EXACT))
