"""Compute classification metrics of frames and videos: average precision, accuracy, precision, recall, F1, cost.

Scores are computed per video and then averaged over videos, so that long and short videos have the same weight. Classes
that are absent in a video do not count in it (NaN), independent of other libraries' versions. Standard deviations are
of the population.
"""

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def average_precision(scores: Array, truth: Array) -> float:
    """Return one class's average precision, sum of (R_n - R_(n-1)) P_n, for scores, truth (N,); NaN if absent."""
    if not truth.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=np.inf))  # last index of each run of equal scores
    hits = np.cumsum(truth[order].astype(np.int64))[last]
    gained = np.diff(hits, prepend=0) / hits[-1]
    return float(np.sum(gained * hits / (last + 1)))


def average_precisions(scores: Array, truth: Array) -> Array:
    """Return the average precision (C,) of each class for scores and bool truth (N, C); NaN for absent classes."""
    return np.array([average_precision(scores[:, c], truth[:, c]) for c in range(truth.shape[1])])


def component_scores(values: Array, of_each: Sequence[int]) -> Array:
    """Return (N, K) maxima of values (N, C) over the triplets of each component; `of_each` has their components."""
    ids = np.asarray(of_each)
    return np.stack([values[:, ids == k].max(1) for k in range(ids.max() + 1)], 1)


def confusion(prediction: Array, truth: Array, classes: int) -> Array:
    """Return the confusion matrix (C, C) int64 of ids (N,) in 0..C-1: rows are true classes, columns predictions."""
    counts = np.bincount(truth.astype(np.int64) * classes + prediction.astype(np.int64), minlength=classes**2)
    return counts.reshape(classes, classes)  # (C * C,) -> (C, C)


def recalls(counts: Array) -> Array:
    """Return the recall of each class, (C,) in [0, 1]; NaN for absent classes."""
    return _share(np.diagonal(counts), counts.sum(1))


def precisions(counts: Array) -> Array:
    """Return the precision of each class, (C,); 0 for a present class that is never predicted, NaN if absent."""
    correct, predicted, true = np.diagonal(counts), counts.sum(0), counts.sum(1)
    return np.where(true > 0, correct / np.maximum(predicted, 1), np.nan)


def f1_scores(counts: Array) -> Array:
    """Return 2 TP / (2 TP + FP + FN) of each class, (C,); NaN if the class is absent and never predicted."""
    return _share(2 * np.diagonal(counts), counts.sum(0) + counts.sum(1))


def harmonic(precision: float, recall: float) -> float:
    """Return the harmonic mean of a mean precision and a mean recall (F1); 0 if both are 0."""
    both = precision + recall
    return 2 * precision * recall / both if both > 0 else both


def phase_scores(prediction: Array, truth: Array, classes: int) -> dict[str, float]:
    """Return a video's "accuracy", mean "precision" and "recall" over phases, and "f1", for ids (N,)."""
    counts = confusion(prediction, truth, classes)
    precision, recall = mean_known(precisions(counts)), mean_known(recalls(counts))
    accuracy = float(np.trace(counts) / counts.sum())
    return {"accuracy": accuracy, "precision": precision, "recall": recall, "f1": harmonic(precision, recall)}


def expected_cost(prediction: Array, truth: Array, classes: int) -> float:
    """Return the mean of |i - j| / (classes - 1) over samples (N,) of ordered classes, in [0, 1] (our cost)."""
    return float(np.mean(np.abs(prediction.astype(np.int64) - truth.astype(np.int64)))) / max(classes - 1, 1)


def mean_known(values: Array) -> float:
    """Return the mean without NaN, or NaN if nothing is left."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def spread(values: Array) -> float:
    """Return the population standard deviation without NaN, or NaN if nothing is left."""
    known = values[~np.isnan(values)]
    return float(known.std()) if known.size else float("nan")


def _share(part: Array, whole: Array) -> Array:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
