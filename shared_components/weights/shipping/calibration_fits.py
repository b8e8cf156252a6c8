"""Fit a calibration: reference features, the distance to other videos, and a temperature.

The fits are not in `core.calibration`, because a prediction does not need them and scipy is slow to import.
"""

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from shared_components.core.calibration import COLDEST, HOTTEST

TINY = 1e-6
BINS = 15


def reference(videos: Tensor, *, axes: int) -> tuple[Tensor, Tensor]:
    """Return centre (D,) and scaled principal axes (K, D) of videos (V, D), at most `axes`.

    The variances are shrunk towards their mean as in Ledoit and Wolf (2004).
    """
    centre = videos.mean(0)
    rows = (videos - centre).double()
    _, lengths, directions = torch.linalg.svd(rows, full_matrices=False)
    count = min(axes, len(videos) - 1, videos.shape[1])
    coordinates = rows @ directions[:count].T  # (V, K)
    variances = lengths[:count].square() / len(videos)
    share = _shrinkage(coordinates, variances)
    shrunk = (1 - share) * variances + share * variances.mean()
    return centre, (directions[:count] / shrunk.sqrt()[:, None]).float()


def _shrinkage(coordinates: Tensor, variances: Tensor) -> float:
    """Return Ledoit and Wolf's shrinkage, 0..1, of centred coordinates (V, K) along principal axes."""
    V = len(coordinates)
    apart = (variances - variances.mean()).square().sum()
    products = coordinates[:, :, None] * coordinates[:, None]  # (V, K, K)
    error = (products - torch.diag(variances)).square().sum() / V**2
    return float((error / apart).clamp(0, 1)) if apart > 0 else 1.0


def way(known: Tensor, others: Tensor, *, ridge: float) -> tuple[Tensor, float]:
    """Return direction (D,) and offset that map known videos (V, D) close to -1 and others (W, D) close to 1.

    Ridge regression on features that are standardised with the known videos.
    """
    mean, spread = known.mean(0).double(), known.double().std(0, correction=0) + TINY
    rows = (torch.cat([known, others]).double() - mean) / spread
    sides = torch.cat([-torch.ones(len(known)), torch.ones(len(others))]).double()
    middle, level = rows.mean(0), sides.mean()
    moments = (rows - middle).T @ (rows - middle) / len(rows) + ridge * torch.eye(rows.shape[1])
    weights = torch.linalg.solve(moments, (rows - middle).T @ (sides - level) / len(rows))
    direction = weights / spread
    return direction.float(), float(level - weights @ middle - direction @ mean)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature with the lowest cross-entropy of logits (N, C) and labels (N,), within the limits."""
    logits, labels = logits.double(), labels.long()

    def entropy(log: float) -> float:
        return float(F.cross_entropy(logits / np.exp(log), labels))

    return float(np.exp(minimize_scalar(entropy, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded").x))


def calibration_error(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """Return the expected calibration error (Guo et al., 2017) of logits (N, C) and labels (N,), 0..1.

    It is the mean difference of confidence and accuracy over `BINS` equal bins of confidence, weighted by pixels.
    """
    confidence, answer = (logits / temperature).softmax(1).max(1)
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    difference = confidence.double() - (answer == labels).double()
    return float(torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, difference).abs().sum() / len(labels))
