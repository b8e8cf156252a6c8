"""Compute segmentation metrics of a frame: exact Dice, IoU, ASSD and HD95, with a policy for empty masks.

Distances are Euclidean, in pixels of the given arrays: pass masks at the original resolution of the video. They are
measured between surfaces: pixels of a class with a four-neighbour outside the class or outside the image. Definitions
differ by up to hundreds of pixels on bad masks:

- `hd95`: 95th percentile of the pooled distances of both directions (medpy; the PFedSIS paper);
- `hd95_monai`: the larger of the two directed 95th percentiles (MONAI);
- `assd`: mean of the pooled distances of both directions (MONAI, and medpy from 0.5 on; medpy 0.4 takes the mean of
  both directed means).

Policies for a class that is empty in a frame:

- "diagonal": If truth and prediction are empty, the class does not count (NaN). If only one is empty, Dice and IoU are
  0 and all distances are the image diagonal, so that missing a structure never improves a score.
- "paper": Follows the released PFedSIS evaluation, only for comparison with published numbers. An empty prediction
  becomes the single pixel [0, 0]. An empty truth becomes the same pixel, which is also added to the prediction. If both
  are empty, the score is perfect and counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import cv2
import numpy as np
import torch

from shared_components.core.video_metrics import confusion, mean_known, spread
from shared_components.data.files.classes import IGNORED

Policy = Literal["diagonal", "paper"]
REGION_METRICS = ("dice", "iou")
DISTANCE_METRICS = ("assd", "hd95", "hd95_monai")

# Number of surface pixels from which a distance transform is faster than a KD-tree.
_DENSE = 30_000
# cv2's float32 transform has wrong squared distances from 885 pixels on (from 1,526 on two threads), measured
# against scipy on 1,700 full-size masks; below, none was wrong.
_TRANSFORM_REACH = 512.0


@dataclass(frozen=True, eq=False)
class FrameScores:
    """Scores of one frame, with one entry per class in the order of `classes`; NaN if a class does not count."""

    classes: tuple[int, ...]  # scored class ids (C of them)
    policy: Policy
    dice: np.ndarray  # (C,) float64 in [0, 1], higher is better
    iou: np.ndarray  # like dice
    empty_prediction: np.ndarray  # (C,) bool, before the policy
    empty_truth: np.ndarray
    assd: np.ndarray | None = None  # (C,) float64 in pixels, lower is better; None if not measured
    hd95: np.ndarray | None = None
    hd95_monai: np.ndarray | None = None
    image_iou: float | None = None  # see the function `image_iou`; None if not measured


def frame_scores(
    prediction: np.ndarray | torch.Tensor,
    truth: np.ndarray | torch.Tensor,
    *,
    classes: Sequence[int],
    distances: bool = True,
    policy: Policy = "diagonal",
) -> FrameScores:
    """Score the predicted class ids (H, W) of one frame against the true ones.

    Ids are numpy or torch on any device, of an integer type; uint8 is fastest. Ids that are not in ``classes`` count as
    background, and `IGNORED` pixels of the truth as background in both. ``distances`` take nearly all of the time.
    ``policy`` is for empty classes, see the module. Raises ValueError if the shapes differ or are
    not (H, W), a type is not integer, or the policy is unknown.
    """
    if policy not in get_args(Policy):
        raise ValueError(f"unknown policy {policy!r} for empty masks; known policies: {', '.join(get_args(Policy))}")
    prediction, truth = _as_arrays(prediction, truth)
    if (unlabelled := truth == IGNORED).any():
        prediction = np.where(unlabelled, truth, prediction)
    metrics = REGION_METRICS + (DISTANCE_METRICS if distances else ())
    values = np.empty((len(metrics), len(classes)))
    empty = np.empty((2, len(classes)), dtype=bool)
    for column, class_id in enumerate(classes):
        masks = prediction == class_id, truth == class_id
        empty[:, column] = [not mask.any() for mask in masks]
        values[:, column] = _class_scores(*masks, policy=policy, distances=distances)
    by_metric: dict[str, Any] = dict(zip(metrics, values, strict=True))
    return FrameScores(tuple(classes), policy, empty_prediction=empty[0], empty_truth=empty[1], **by_metric)


def image_iou(prediction: np.ndarray | torch.Tensor, truth: np.ndarray | torch.Tensor, *, classes: int) -> float:
    """Return the mean IoU of one frame (H, W) over the classes in its truth or prediction, including the background.

    Pixels that are `IGNORED` in the truth do not count. The result is in [0, 1], or NaN if no pixel counts.
    """
    prediction, truth = _as_arrays(prediction, truth)
    known = truth != IGNORED
    counts = confusion(prediction[known], truth[known], classes)
    both = np.diagonal(counts)
    either = counts.sum(0) + counts.sum(1) - both
    return mean_known(np.where(either > 0, both / np.maximum(either, 1), np.nan))


def summarise(scores: Sequence[FrameScores], class_names: Sequence[str]) -> dict[str, Any]:
    """Return the means over frames per class, and their mean over classes, as plain numbers for a record.

    {"dice": {"shaft": 0.9, ..., "mean": 0.8}, "iou": ..., "assd": ..., "hd95": ..., "hd95_monai": ..., "empty":
    {"shaft": {"prediction": 1, "truth": 0, "both": 2}, ...}, "frames": 9, "policy": "diagonal"}. A class that counts in
    no frame is None and left out of "mean". "empty" counts frames in which only the prediction, only the truth, or both
    are empty. Distances are included if every frame has them; likewise "image_iou": {"mean": 0.7} and its "std" over
    frames. Raises ValueError if there are no frames, their classes or policies differ, or a name is missing.
    """
    if not scores:
        raise ValueError("no frames to summarise; the split has no labelled frames")
    classes, policy = scores[0].classes, scores[0].policy
    if any((frame.classes, frame.policy) != (classes, policy) for frame in scores):
        raise ValueError(f"all frames must have the classes {classes} and policy {policy!r} of the first frame")
    if len(class_names) != len(classes):
        raise ValueError(f"names {tuple(class_names)} do not fit the scored classes {classes}; give one name per class")
    summary: dict[str, Any] = {}
    for metric in REGION_METRICS + DISTANCE_METRICS:
        columns = [getattr(frame, metric) for frame in scores]
        if all(column is not None for column in columns):
            summary[metric] = _means(np.stack(columns), class_names)  # (frames, classes)
    of_images = np.array([frame.image_iou for frame in scores if frame.image_iou is not None])
    if len(of_images) == len(scores):
        summary["image_iou"] = {"mean": mean_known(of_images)}
        summary["std"] = {"image_iou": spread(of_images)}
    summary["empty"] = _empty_counts(scores, class_names)
    return {**summary, "frames": len(scores), "policy": policy}


def _class_scores(prediction: np.ndarray, truth: np.ndarray, *, policy: str, distances: bool) -> list[float]:
    """Return Dice, IoU and optionally ASSD, pooled HD95 and MONAI's HD95 of two (H, W) bool masks under the policy."""
    if policy == "paper":
        prediction, truth = _with_first_pixel(prediction, truth)
    sizes = np.count_nonzero(prediction), np.count_nonzero(truth)
    if not any(sizes):
        return [np.nan] * (5 if distances else 2)
    if not all(sizes):
        # only one is empty: no overlap, and the largest distance
        return [0.0, 0.0] + [float(np.hypot(*truth.shape))] * (3 if distances else 0)
    intersection = np.count_nonzero(prediction & truth)
    regions: list[float] = [2 * intersection / sum(sizes), intersection / (sum(sizes) - intersection)]
    if not distances:
        return regions
    surfaces = _surface(prediction), _surface(truth)
    there, back = _nearest(surfaces[0], surfaces[1]), _nearest(surfaces[1], surfaces[0])
    pooled = np.concatenate([there, back])  # (N,) and (M,) -> (N + M,)
    larger = max(np.percentile(there, 95), np.percentile(back, 95))
    return [*regions, float(pooled.mean()), float(np.percentile(pooled, 95)), float(larger)]


def _with_first_pixel(prediction: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the masks as changed by the released PFedSIS evaluation, so that no mask is empty."""
    prediction, truth = prediction.copy(), truth.copy()
    if not truth.any():
        truth[0, 0] = prediction[0, 0] = True
    if not prediction.any():
        prediction[0, 0] = True
    return prediction, truth


def _surface(mask: np.ndarray) -> np.ndarray:
    """Return the (N, 2) row and column of the pixels that an erosion by the four-neighbour cross removes."""
    left, top, width, height = cv2.boundingRect(mask.view(np.uint8))
    box = mask[top : top + height, left : left + width]  # the edge of the box is surface: the mask ends there
    inside = box[1:-1, 1:-1] & box[:-2, 1:-1] & box[2:, 1:-1] & box[1:-1, :-2] & box[1:-1, 2:]
    surface = box.copy()
    surface[1:-1, 1:-1] ^= inside  # eroded pixels are not surface
    row, column = np.divmod(np.flatnonzero(surface), width)
    return np.column_stack([row + top, column + left])


def _nearest(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the exact distance of each of (N, 2) pixels to the nearest of (M, 2) pixels: (N,) float64."""
    if len(points) < _DENSE:
        return _query(points, targets)
    distance = _transform(points, targets)
    far = distance > _TRANSFORM_REACH
    if far.any():
        distance[far] = _query(points[far], targets)
    return distance


def _query(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    from scipy.spatial import cKDTree

    # Distances of lattice points are roots of integers, so any exact search gives the same float64.
    return cKDTree(targets, leafsize=32, balanced_tree=False).query(points)[0]


def _transform(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the result of `_query` by a distance transform; exact up to `_TRANSFORM_REACH`."""
    # the transform gives each pixel's distance to the nearest zero; targets are zero
    low = np.minimum(points.min(axis=0), targets.min(axis=0))
    high = np.maximum(points.max(axis=0), targets.max(axis=0))
    image = np.ones(high - low + 1, dtype=np.uint8)
    image[tuple((targets - low).T)] = 0
    distance = cv2.distanceTransform(image, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[tuple((points - low).T)]
    return np.sqrt(np.rint(np.square(distance, dtype=np.float64)))


def _means(values: np.ndarray, class_names: Sequence[str]) -> dict[str, float | None]:
    """Return the mean of each class over values (frames, classes) without NaN, and the mean over classes."""
    counted = ~np.isnan(values)
    means = {
        name: float(column[use].mean()) if use.any() else None
        for name, column, use in zip(class_names, values.T, counted.T, strict=True)
    }
    present = [mean for mean in means.values() if mean is not None]
    return {**means, "mean": sum(present) / len(present) if present else None}


def _empty_counts(scores: Sequence[FrameScores], class_names: Sequence[str]) -> dict[str, dict[str, int]]:
    prediction = np.stack([frame.empty_prediction for frame in scores])  # (frames, classes)
    truth = np.stack([frame.empty_truth for frame in scores])
    cases = {"prediction": prediction & ~truth, "truth": truth & ~prediction, "both": prediction & truth}
    return {
        name: {case: int(where[:, column].sum()) for case, where in cases.items()}
        for column, name in enumerate(class_names)
    }


def _as_arrays(*masks: np.ndarray | torch.Tensor) -> list[np.ndarray]:
    arrays = [mask.cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask) for mask in masks]
    first, second = (array.shape for array in arrays)
    if first != second or len(first) != 2:
        raise ValueError(f"prediction is {first}, truth is {second}; expected equal shapes (H, W)")
    for name, array in zip(("prediction", "truth"), arrays, strict=True):
        if array.dtype.kind not in "uib":
            raise ValueError(f"{name} is of type {array.dtype}; expected integer class ids, such as uint8")
    return arrays
