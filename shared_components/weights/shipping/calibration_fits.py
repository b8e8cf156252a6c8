"""Fit a calibration: reference features, the distance to other videos, and a temperature.

The fits are not in `core.calibration`, because a prediction does not need them and scipy is slow to import.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from shared_components.core.calibration import COLDEST, HOTTEST

TINY = 1e-6
BINS = 15


def reference(videos: Tensor, *, axes: int) -> tuple[Tensor, Tensor]:
    """Return centre (D,) and axes (K, D) of videos (V, D), one row each.

    The K first principal axes, with variances that are shrunk towards their mean as Ledoit and Wolf (2004) do.
    """
    centre = videos.mean(0)
    rows = (videos - centre).double()
    _, lengths, directions = torch.linalg.svd(rows, full_matrices=False)
    kept = min(axes, len(videos) - 1, videos.shape[1])
    places = rows @ directions[:kept].T  # (V, K)
    variances = lengths[:kept].square() / len(videos)
    share = _shrinkage(places, variances)
    shrunk = (1 - share) * variances + share * variances.mean()
    return centre, (directions[:kept] / shrunk.sqrt()[:, None]).float()


def _shrinkage(places: Tensor, variances: Tensor) -> float:
    """Return Ledoit and Wolf's share of the scaled identity, 0..1, of centred places (V, K) along principal axes."""
    V = len(places)
    apart = (variances - variances.mean()).square().sum()
    products = places[:, :, None] * places[:, None]  # (V, K, K)
    error = (products - torch.diag(variances)).square().sum() / V**2
    return float((error / apart).clamp(0, 1)) if apart > 0 else 1.0


def way(known: Tensor, others: Tensor, *, ridge: float) -> tuple[Tensor, float]:
    """Return direction (D,) and offset by which known videos (V, D) are near -1, and others (W, D) near 1.

    It is the ridge regression of these numbers on channels that known videos give mean 0 and variance 1.
    """
    mean, spread = known.mean(0).double(), known.double().std(0, correction=0) + TINY
    rows = (torch.cat([known, others]).double() - mean) / spread
    sides = torch.cat([-torch.ones(len(known)), torch.ones(len(others))]).double()
    middle, level = rows.mean(0), sides.mean()
    moments = (rows - middle).T @ (rows - middle) / len(rows) + ridge * torch.eye(rows.shape[1])
    found = torch.linalg.solve(moments, (rows - middle).T @ (sides - level) / len(rows))
    direction = found / spread
    return direction.float(), float(level - found @ middle - direction @ mean)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature of the least cross-entropy of logits (N, C) and labels (N,), within the possible."""
    logits, labels = logits.double(), labels.long()

    def entropy(log: float) -> float:
        return float(F.cross_entropy(logits / np.exp(log), labels))

    return float(np.exp(minimize_scalar(entropy, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded").x))


def calibration_error(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """Return the expected calibration error (Guo et al., 2017) of logits (N, C) and labels (N,), 0..1.

    The difference of confidence and accuracy in `BINS` bins of confidence, equally wide, weighted by their pixels.
    """
    sure, answer = (logits / temperature).softmax(1).max(1)
    bins = (sure * BINS).ceil().long().clamp(1, BINS) - 1
    difference = sure.double() - (answer == labels).double()
    return float(torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, difference).abs().sum() / len(labels))
