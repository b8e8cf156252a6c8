"""Measures of reconstruction and of membership inference."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F


def psnr(a: Tensor, b: Tensor) -> float:
    """Return the peak signal-to-noise ratio of two images in [0, 1], in dB; infinite for equal images."""
    error = float((a.double() - b.double()).square().mean())
    return -10 * math.log10(error) if error else math.inf


def ssim(a: Tensor, b: Tensor) -> float:
    """Return the structural similarity of two images (C, H, W) in [0, 1], the mean over channels and pixels.

    Wang et al., IEEE TIP 2004: a Gaussian window of 11 pixels with a deviation of 1.5, K1 0.01, K2 0.03.
    """
    places = torch.arange(11, dtype=torch.float64) - 5
    line = torch.exp(-places.square() / (2 * 1.5**2))
    window = torch.outer(line, line)[None, None] / line.sum() ** 2

    def local(x: Tensor) -> Tensor:  # (C, H, W) -> (C, 1, H - 10, W - 10)
        return F.conv2d(x[:, None], window)

    a, b = a.double(), b.double()
    mean_a, mean_b = local(a), local(b)
    var_a, var_b = local(a * a) - mean_a**2, local(b * b) - mean_b**2
    both = local(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    map_ = (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(map_.mean())


def matched(found: Tensor, true: Tensor) -> Tensor:
    """Return a batch's reconstructions in the order with the smallest total distance to the true frames.

    A gradient does not depend on the order of the batch.
    """
    scores = np.array([[psnr(a, b) for a in found] for b in true])
    _, columns = linear_sum_assignment(np.minimum(scores, 1e3), maximize=True)
    return found[torch.as_tensor(columns)]


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    """Return the area under the curve: the probability that a member's loss is below a non-member's, ties counted half.

    The attack of Yeom et al., CSF 2018 (arXiv 1709.01604), over all thresholds of the loss.
    """
    a, b = np.asarray(members, float)[:, None], np.asarray(others, float)[None]
    return float(((a < b) + 0.5 * (a == b)).mean())


def auc_interval(
    members: Sequence[float], others: Sequence[float], *, seed: int = 0, draws: int = 2000
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the AUC over members and non-members."""
    generator = np.random.default_rng(seed)
    a, b = np.asarray(members, float), np.asarray(others, float)
    found = [
        auc(a[generator.integers(len(a), size=len(a))], b[generator.integers(len(b), size=len(b))])
        for _ in range(draws)
    ]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
