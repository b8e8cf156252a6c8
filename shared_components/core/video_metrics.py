"""Metrics of labels per frame and per video: average precision, accuracy, precision, recall, F1, cost of grades.

Scores of frames are computed per video, and then averaged over videos: a long video counts as a short one. What a video
does not have is not counted in it (NaN), whatever version of another library would say. Spreads are population standard
deviations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def average_precision(scores: Array, truth: Array) -> float:
    """Return the area below the precision-recall steps, sum of (R_n - R_(n-1)) P_n, of one class.

    Args:
        scores: (N,) finite numbers, higher is surer; equal ones are one threshold.
        truth: (N,) bool.

    Returns:
        In [0, 1]; NaN where no truth is positive.
    """
    if not truth.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=np.inf))  # of each run of equal scores
    hits = np.cumsum(truth[order].astype(np.int64))[last]
    gained = np.diff(hits, prepend=0) / hits[-1]
    return float(np.sum(gained * hits / (last + 1)))


def average_precisions(scores: Array, truth: Array) -> Array:
    """Return the average precision of each class of one video, NaN for those it does not have.

    Args:
        scores: (N, C), of N frames.
        truth: (N, C) bool.

    Returns:
        (C,) float64.
    """
    return np.array([average_precision(scores[:, c], truth[:, c]) for c in range(truth.shape[1])])


def component_scores(values: Array, of_each: Sequence[int]) -> Array:
    """Return scores or truth (N, K) of components: the largest of the triplets (N, C) that have each.

    `of_each` is each triplet's component, 0..K-1, see `triplets.component_of`.
    """
    ids = np.asarray(of_each)
    return np.stack([values[:, ids == k].max(1) for k in range(ids.max() + 1)], 1)


def confusion(prediction: Array, truth: Array, classes: int) -> Array:
    """Count (C, C) int64: rows are the true classes, columns the predicted ones; both (N,) ids in 0..C-1."""
    counts = np.bincount(truth.astype(np.int64) * classes + prediction.astype(np.int64), minlength=classes**2)
    return counts.reshape(classes, classes)  # (C * C,) -> (C, C)


def recalls(counts: Array) -> Array:
    """Return each true class's share that was found, (C,) in [0, 1]; NaN for a class that does not occur."""
    return _share(np.diagonal(counts), counts.sum(1))


def precisions(counts: Array) -> Array:
    """Return each class's share of right predictions, (C,) in [0, 1].

    A class that occurs and is never predicted has 0, one that does not occur NaN.
    """
    right, said, true = np.diagonal(counts), counts.sum(0), counts.sum(1)
    return np.where(true > 0, right / np.maximum(said, 1), np.nan)


def f1_scores(counts: Array) -> Array:
    """Return 2 TP / (2 TP + FP + FN) of each class, (C,); NaN where it neither occurs nor is predicted."""
    return _share(2 * np.diagonal(counts), counts.sum(0) + counts.sum(1))


def harmonic(precision: float, recall: float) -> float:
    """Return the harmonic mean, the F1 of a mean precision and a mean recall; 0 where both are."""
    both = precision + recall
    return 2 * precision * recall / both if both > 0 else both


def phase_scores(prediction: Array, truth: Array, classes: int) -> dict[str, float]:
    """Score the frames of one video, ids (N,) in 0..classes-1.

    Returns:
        "accuracy", "precision" and "recall" (means over the video's phases), and "f1", the harmonic mean of these two.
    """
    counts = confusion(prediction, truth, classes)
    precision, recall = mean_known(precisions(counts)), mean_known(recalls(counts))
    accuracy = float(np.trace(counts) / counts.sum())
    return {"accuracy": accuracy, "precision": precision, "recall": recall, "f1": harmonic(precision, recall)}


def expected_cost(prediction: Array, truth: Array, classes: int) -> float:
    """Return the mean of |i - j| / (classes - 1) over samples (N,) of ordered classes, in [0, 1].

    For grades 0 to 5 that is |i - j| / 5. FedSurg's cost matrix was not found: this one is ours.
    """
    return float(np.mean(np.abs(prediction.astype(np.int64) - truth.astype(np.int64)))) / max(classes - 1, 1)


def mean_known(values: Array) -> float:
    """Return the mean of what is not NaN; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def spread(values: Array) -> float:
    """Return the population standard deviation of what is not NaN; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.std()) if known.size else float("nan")


def _share(part: Array, whole: Array) -> Array:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
