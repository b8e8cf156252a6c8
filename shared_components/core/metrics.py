"""Segmentation metrics of a frame: Dice, IoU, ASSD and HD95, exact, with a stated policy for empty masks.

Distances are Euclidean, in pixels of the arrays given: pass masks at the original resolution of the video.
They run between surfaces, the pixels of a class with one of their four neighbours outside it or outside the
image. Definitions in use differ by up to hundreds of pixels on bad masks, so each is named:

- `hd95`: 95th percentile of the distances of both directions pooled (medpy; the PFedSIS paper);
- `hd95_monai`: the larger of the two directions' 95th percentiles (MONAI);
- `assd`: mean of the distances of both directions pooled (MONAI, and medpy from 0.5 on; medpy 0.4 takes the
  mean of the two directions' means).

Policies for a class that is empty in a frame:

- "diagonal": empty in both, not counted (NaN); empty in one only, Dice and IoU 0 and every distance the
  diagonal of the image, more than any two pixels are apart. So missing a structure never improves a score.
- "paper": the released PFedSIS evaluation. An empty prediction becomes the single pixel [0, 0]; an empty
  truth becomes that pixel too, which is then added to the prediction. Empty in both is perfect and counts.
  Only for comparison with published numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from shared_components.core.video_metrics import confusion, mean_known, spread
from shared_components.data.classes import IGNORED

POLICIES = ("diagonal", "paper")
REGION_METRICS = ("dice", "iou")
DISTANCE_METRICS = ("assd", "hd95", "hd95_monai")

# From about this many surface pixels on, a distance transform of a frame is faster than a KD-tree's queries.
_DENSE = 30_000
# cv2's float32 transform rounds to a wrong squared distance from 885 pixels on (from 1,526 on two threads),
# measured against scipy's on 1,700 full-size masks; none was wrong below.
_TRANSFORM_REACH = 512.0


@dataclass(frozen=True, eq=False)
class FrameScores:
    """Scores of one frame, one entry per class in the order of `classes`; NaN where a class is not counted.

    Attributes:
        classes: the C class ids scored.
        policy: what was done with empty masks, one of `POLICIES`.
        dice, iou: (C,) float64 in [0, 1], higher is better.
        empty_prediction, empty_truth: (C,) bool, before any policy.
        assd, hd95, hd95_monai: (C,) float64 in pixels, lower is better; None if not asked for.
        image_iou: see `image_iou`; None if not asked for.
    """

    classes: tuple[int, ...]
    policy: str
    dice: np.ndarray
    iou: np.ndarray
    empty_prediction: np.ndarray
    empty_truth: np.ndarray
    assd: np.ndarray | None = None
    hd95: np.ndarray | None = None
    hd95_monai: np.ndarray | None = None
    image_iou: float | None = None


def frame_scores(
    prediction: np.ndarray | torch.Tensor,
    truth: np.ndarray | torch.Tensor,
    *,
    classes: Sequence[int],
    distances: bool = True,
    policy: str = "diagonal",
) -> FrameScores:
    """Score the predicted class ids of one frame against the true ones.

    Args:
        prediction: (H, W) class ids, numpy or torch on any device, of an integer type; uint8 is the fastest.
        truth: (H, W) class ids; the prediction counts as outside, too, where it is `IGNORED`.
        classes: the ids to score; other ids count as outside.
        distances: whether to measure the surface distances too, which takes nearly all of the time.
        policy: what to do with a class that is empty in the frame, one of `POLICIES` (see the module).

    Raises:
        ValueError: the shapes differ or are not (H, W), the types are not integer, the policy is unknown.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r} for empty masks; known policies: {', '.join(POLICIES)}")
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
    found: dict[str, Any] = dict(zip(metrics, values, strict=True))
    return FrameScores(tuple(classes), policy=policy, empty_prediction=empty[0], empty_truth=empty[1], **found)


def image_iou(prediction: np.ndarray | torch.Tensor, truth: np.ndarray | torch.Tensor, *, classes: int) -> float:
    """Return the mean IoU of one frame over the classes that it or its prediction has, background included.

    Args:
        prediction, truth: (H, W) ids in 0..classes-1; pixels that are `IGNORED` in the truth do not count.

    Returns:
        In [0, 1]; NaN where no pixel counts.
    """
    prediction, truth = _as_arrays(prediction, truth)
    known = truth != IGNORED
    counts = confusion(prediction[known], truth[known], classes)
    both = np.diagonal(counts)
    either = counts.sum(0) + counts.sum(1) - both
    return mean_known(np.where(either > 0, both / np.maximum(either, 1), np.nan))


def summarise(scores: Sequence[FrameScores], class_names: Sequence[str]) -> dict[str, Any]:
    """Average frames into the plain numbers of a record: the mean over frames per class, and over classes.

    Args:
        scores: of one site's frames, all with the same classes and policy.
        class_names: a name for each scored class, in the order of `FrameScores.classes`.

    Returns:
        {"dice": {"shaft": 0.9, ..., "mean": 0.8}, "iou": ..., "assd": ..., "hd95": ..., "hd95_monai": ...,
        "empty": {"shaft": {"prediction": 1, "truth": 0, "both": 2}, ...}, "frames": 9, "policy": "diagonal"}.
        A class counted in no frame is None and left out of "mean". Under "empty" each frame counts once:
        "prediction" where only the prediction is empty, "truth" where only the truth is. The distances are
        there where every frame has them; likewise "image_iou": {"mean": 0.7} and its "std" over frames.

    Raises:
        ValueError: no frames, frames of other classes or policies among them, or a name missing.
    """
    if not scores:
        raise ValueError("no frames to summarise; the split has no labelled frames")
    classes, policy = scores[0].classes, scores[0].policy
    if any((frame.classes, frame.policy) != (classes, policy) for frame in scores):
        raise ValueError(f"frames differ from the first one's classes {classes} or policy {policy!r}")
    if len(class_names) != len(classes):
        raise ValueError(f"names {tuple(class_names)} do not fit the scored classes {classes}, one name each")
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
    """Return the Dice, the IoU and, if asked for, the distances of two (H, W) bool masks under the policy."""
    if policy == "paper":
        prediction, truth = _with_first_pixel(prediction, truth)
    sizes = np.count_nonzero(prediction), np.count_nonzero(truth)
    if not any(sizes):
        return [np.nan] * (5 if distances else 2)
    if not all(sizes):
        # missed or invented: no overlap, and further off than any two pixels
        return [0.0, 0.0] + [float(np.hypot(*truth.shape))] * (3 if distances else 0)
    intersection = np.count_nonzero(prediction & truth)
    regions = [2 * intersection / sum(sizes), intersection / (sum(sizes) - intersection)]
    return regions + (_surface_scores(prediction, truth) if distances else [])


def _with_first_pixel(prediction: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the masks as the released PFedSIS evaluation changes them: no mask is left empty."""
    prediction, truth = prediction.copy(), truth.copy()
    if not truth.any():
        truth[0, 0] = prediction[0, 0] = True
    if not prediction.any():
        prediction[0, 0] = True
    return prediction, truth


def _surface_scores(prediction: np.ndarray, truth: np.ndarray) -> list[float]:
    """Return ASSD, pooled HD95 and MONAI's HD95 of two (H, W) bool masks, neither empty."""
    surfaces = _surface(prediction), _surface(truth)
    there, back = _nearest(surfaces[0], surfaces[1]), _nearest(surfaces[1], surfaces[0])
    pooled = np.concatenate([there, back])  # (N,) and (M,) -> (N + M,)
    larger = max(np.percentile(there, 95), np.percentile(back, 95))
    return [float(pooled.mean()), float(np.percentile(pooled, 95)), float(larger)]


def _surface(mask: np.ndarray) -> np.ndarray:
    """Return the (N, 2) row and column of the pixels that an erosion by the four-neighbour cross removes."""
    left, top, width, height = cv2.boundingRect(mask.view(np.uint8))
    box = mask[top : top + height, left : left + width]  # its edge is surface: nothing of the mask is beyond
    inside = box[1:-1, 1:-1] & box[:-2, 1:-1] & box[2:, 1:-1] & box[1:-1, :-2] & box[1:-1, 2:]
    surface = box.copy()
    surface[1:-1, 1:-1] ^= inside  # what the erosion leaves is no surface
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
    """Return what `_query` does by a distance transform over the box around both; exact within reach."""
    # zeros at the targets: the transform gives every pixel's distance to the nearest zero
    low = np.minimum(points.min(axis=0), targets.min(axis=0))
    high = np.maximum(points.max(axis=0), targets.max(axis=0))
    image = np.ones(high - low + 1, dtype=np.uint8)
    image[tuple((targets - low).T)] = 0
    distance = cv2.distanceTransform(image, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[tuple((points - low).T)]
    return np.sqrt(np.rint(np.square(distance, dtype=np.float64)))


def _means(values: np.ndarray, class_names: Sequence[str]) -> dict[str, float | None]:
    """Return each class's mean over the frames of (frames, classes), NaN left out, and the mean of those."""
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
    """Return prediction and truth as numpy arrays, or say what is wrong with them."""
    arrays = [mask.cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask) for mask in masks]
    first, second = (array.shape for array in arrays)
    if first != second or len(first) != 2:
        raise ValueError(f"prediction is {first}, truth is {second}; expected equal shapes (H, W)")
    for name, array in zip(("prediction", "truth"), arrays, strict=True):
        if array.dtype.kind not in "uib":
            raise ValueError(f"{name} is of type {array.dtype}; expected integer class ids, such as uint8")
    return arrays
