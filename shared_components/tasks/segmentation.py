"""Semantic segmentation: every pixel belongs to one class of the site's class map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.drawing.palette import class_entries
from shared_components.common.drawing.pictures import legend, overlay
from shared_components.common.drawing.sheets import Sheet
from shared_components.core import task as tasks
from shared_components.core.card import Card, Metric
from shared_components.core.losses import objects_loss, segmentation_loss, without_unprompted
from shared_components.core.metrics import FrameScores, Policy, frame_scores, image_iou, summarise
from shared_components.core.prompting import Prompting, inputs_of, prompting_of
from shared_components.core.prompts import Jitter, Rule, class_boxes, of_clips
from shared_components.core.ranges import FromZero, Share
from shared_components.core.task import Array, Batch, Frames, Interval, Scores, last_target
from shared_components.data.samples import Item, Padding, SampleSpec, TargetsOf

METRICS = (
    Metric("dice", "Dice", True, "%", 100.0, 2, in_delta=True),
    Metric("iou", "IoU", True, "%", 100.0, 2, in_delta=True),
    Metric("assd", "ASSD", False, "px", digits=2),
    Metric("hd95", "HD95 (medpy)", False, "px", digits=2),
    Metric("hd95_monai", "HD95 (MONAI)", False, "px", digits=2),
)
IMAGE_IOU = Metric("image_iou", "IoU per image", True, "%", 100.0, 2)
DEFINITIONS = {
    "dice": "twice the overlap over the sum of both areas, per frame and class; mean over frames",
    "iou": "overlap over union, per frame and class; mean over frames",
    "image_iou": "mean IoU over the classes in prediction or mask, with background, per frame; mean over frames",
    "assd": "mean of the pooled surface distances of both directions, as medpy 0.5 and MONAI",
    "hd95": "95th percentile of the pooled surface distances of both directions, as medpy",
    "hd95_monai": "larger 95th percentile of the two directions, as MONAI",
    "mean": "mean over the classes without the background",
    "resolution": "of the mask: the logits' argmax enlarged with nearest neighbours",
    "empty, policy diagonal": "empty in both: not counted; in one: Dice and IoU 0, distances the image diagonal",
    "empty, policy paper": "as released by PFedSIS: an empty mask becomes the pixel [0, 0]",
}


def build(
    *,
    classes: Sequence[str],
    cross_entropy: FromZero = 0.7,
    log_iou: FromZero = 0.3,
    dice: FromZero = 0.0,
    balance: Share = 0.0,
    objects: FromZero = 0.0,
    empty_policy: Policy = "diagonal",
    frames: Frames = 1,
    interval: Interval = 0.0,
    padding: Padding = "first",
    targets_of: TargetsOf = "last",
    prompts: Literal["none", "first", "every_second"] = "none",
    jitter: Jitter = 0.0,
    evaluation_prompts: Rule = "first",
    evaluation_jitter: Jitter = 0.0,
    image_iou: bool = False,
) -> Segmentation:
    """Return the task.

    Args:
        classes: Class names by id, background first.
        cross_entropy: Loss weight of the cross-entropy.
        log_iou: Loss weight of the log of the soft IoU.
        dice: Loss weight of the soft Dice loss (FedST, Eq. (9)).
        balance: Weight of rare classes in the cross-entropy, 0 (as released) to 1.
        objects: Loss weight of each object's binary cross-entropy, as in SurgFed's code; its paper has 0.
        empty_policy: Score of a class that is empty in a frame, ``diagonal`` or ``paper``.
        frames, interval, padding, targets_of: Of a sample's clip, see `samples.SampleSpec`.
        prompts, jitter: Boxes that the network is given in training, one object a class, see `prompts.Prompts`; `none`:
            no boxes.
        evaluation_prompts, evaluation_jitter: The same in evaluation, which is of whole videos then.
        image_iou: Also score the mean IoU per frame, as EndoViT, and select the best weights by it.

    Raises ValueError without classes.
    """
    if len(classes) < 2:
        raise ValueError("segmentation needs a background and a class; choose a data set with a class map")
    weights = {"cross_entropy": cross_entropy, "log_iou": log_iou, "dice": dice, "balance": balance}
    spec = tasks.sample_spec(
        "segmentation", ("label",), frames=frames, interval=interval, padding=padding, targets_of=targets_of
    )
    prompting = prompting_of(
        "segmentation", spec, prompts=prompts, jitter=jitter,
        evaluation_prompts=evaluation_prompts, evaluation_jitter=evaluation_jitter,
    )  # fmt: skip
    floats = {name: float(weight) for name, weight in weights.items()}
    return Segmentation(tuple(classes), floats, float(objects), empty_policy, spec, prompting, image_iou)


@dataclass(frozen=True)
class Segmentation:
    """See `task.Task`. A prediction is a uint8 mask (H, W) of class ids; a score is a `metrics.FrameScores`."""

    classes: tuple[str, ...]
    weights: Mapping[str, float]
    objects: float
    empty_policy: Policy
    spec: SampleSpec
    prompting: Prompting | None = None
    image_iou: bool = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (IMAGE_IOU, *METRICS) if self.image_iou else METRICS

    @property
    def definitions(self) -> Mapping[str, str]:
        return DEFINITIONS | ({} if self.prompting is None else {"prompts": self.prompting.definition})

    @cached_property
    def card(self) -> Card:
        return Card("segmentation", self.classes, inputs_of(self.prompting), frames=self.spec.frames)

    @property
    def recordable(self) -> bool:
        """Whether a CUDA graph can record the loss: operations depend only on shapes."""
        return self.prompting is None

    @property
    def channels(self) -> int:
        """Number of classes, including background."""
        return len(self.classes)

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Add "boxes" (B, T, N, 4) to a batch with labels if the network takes prompts."""
        if self.prompting is None or "label" not in batch:
            return batch
        return {**batch, "boxes": self.prompting.in_training(self.boxes(batch), batch["image"], generator)}

    def boxes(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Return a box per class except background: (B, T, classes - 1, 4), NaN if the frame lacks the class."""
        return class_boxes(of_clips(targets["label"]), len(self.classes))

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the network's logits: (B, C, H, W) for the current frame, or (B, T, C, H, W) for all frames."""
        return tasks.outputs_of(network, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the weighted sum of cross-entropy, log of the soft IoU, Dice loss and binary cross-entropy of objects.

        It covers all frames if outputs and labels have all frames, else the current frame. With prompts, a class
        without a box in its clip counts as background: the network is not trained to find unprompted objects.
        """
        label = batch["label"]
        if "boxes" in batch:
            label = without_unprompted(label, batch["boxes"])
        logits, label = tasks.same_frames(outputs, label)
        loss = segmentation_loss(logits, label, **self.weights)
        return loss + self.objects * objects_loss(logits, label) if self.objects else loss

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Array]:
        """Return uint8 class ids of the current frame, resized by nearest neighbour."""
        ids = tasks.current(outputs, 4).argmax(1).to(torch.uint8).cpu().numpy()  # (B, C, H, W) -> (B, H, W)
        return [enlarge(mask, size) for mask, size in zip(ids, sizes, strict=True)]

    def score(self, answer: Array, item: Item, *, quick: bool) -> FrameScores:
        """Return Dice, IoU and, unless ``quick``, surface distances."""
        classes, truth = range(1, len(self.classes)), last_target(item, "label")
        scores = frame_scores(answer, truth, classes=classes, distances=not quick, policy=self.empty_policy)
        if not self.image_iou:
            return scores
        return replace(scores, image_iou=image_iou(answer, truth, classes=len(self.classes)))

    def rows(self, score: FrameScores) -> list[dict[str, Any]]:
        names = [metric.name for metric in METRICS if getattr(score, metric.name) is not None]
        image_scores = {} if score.image_iou is None else {IMAGE_IOU.name: score.image_iou}
        return [
            {
                "class": name,
                **image_scores,
                **{metric: float(getattr(score, metric)[column]) for metric in names},
                "empty_prediction": int(score.empty_prediction[column]),
                "empty_truth": int(score.empty_truth[column]),
            }
            for column, name in enumerate(self.classes[1:])
        ]

    def summarise(self, scores: Sequence[FrameScores]) -> Scores:
        return summarise(scores, self.classes[1:])

    def per_video(self, scores: Sequence[FrameScores]) -> Mapping[str, Mapping[str, float]]:
        return {}

    def charts(self, scores: Sequence[FrameScores]) -> Mapping[str, Array]:
        return {}

    def files(self, answer: Array, image: Array) -> dict[str, Array]:
        """Return the mask of class ids, and its overlay on the frame with a legend."""
        names = legend(class_entries(self.classes), width=image.shape[1])
        return {"masks": answer, "overlays": np.concatenate([overlay(image, answer), names])}

    def visible(self, answer: Array) -> dict[str, float]:
        """Return the percentage of pixels of each class except background."""
        counts = np.bincount(answer.ravel(), minlength=len(self.classes))
        return {name: 100 * int(counts[number]) / answer.size for number, name in enumerate(self.classes) if number}

    def sheet(self, answer: Array, item: Item) -> Sheet:
        """Draw frame, ground truth, prediction and errors."""
        from shared_components.data.transforms import resize_image
        from shared_components.reporting.overlays import segmentation_sheet

        truth = last_target(item, "label")
        image = resize_image(tasks.last_frame(item), *truth.shape)  # PFedSIS's test masks have native size
        return segmentation_sheet(image, truth, answer, self.classes)


def enlarge(ids: Array, size: tuple[int, int]) -> Array:
    """Resize uint8 class ids (h, w) to (height, width) by nearest neighbour.

    The result equals the released PFedSIS evaluation, which enlarges the logits before the argmax. Distances are
    between pixel centres, as in the released code at the paper's sizes (512x640 to 1024x1280).
    """
    if ids.shape == tuple(size):
        return ids
    return np.asarray(cv2.resize(ids, (size[1], size[0]), interpolation=cv2.INTER_NEAREST_EXACT))
