"""Shape-similarity update of the GLOBAL pieces (PFedSIS, Section III-D.2, Eqs. (14) and (15))."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import in_site_order, weighted_sum
from shared_components.core.method import Update
from shared_components.core.partition import Pieces

SCALES = ("raw", "relative")


def similarity_weights(sensitivities: Sequence[Tensor], *, scale: str = "raw", temperature: float = 1.0) -> Tensor:
    """Eq. (14): softmax over sites, element by element.

    The softmax is not scale-invariant: sensitivities far below 1 give plain averaging whatever their ratio.
    ``relative`` divides by the mean over sites first, so that only the ratio counts (our variant).

    Args:
        sensitivities: K tensors of one shape, one per site.
        scale: ``raw`` as published, or ``relative``.
        temperature: Divides the argument of the softmax; 1 as published.

    Returns:
        Weights of shape (K, ...) in float64 that sum to 1 over the first axis.
    """
    stacked = torch.stack(list(sensitivities)).to(torch.float64)  # K times (...) -> (K, ...)
    if scale == "relative":
        mean = stacked.mean(0, keepdim=True)
        stacked = torch.where(mean.abs() > 0, stacked / mean, torch.ones_like(stacked))
    elif scale != "raw":
        raise ValueError(f"sensitivity scale {scale!r} is unknown; use one of {SCALES}")
    return torch.softmax(stacked / temperature, dim=0)  # Eq. (14)


def similarity_mean(
    updates: Sequence[Update], names: Sequence[str], *, scale: str, temperature: float
) -> tuple[Pieces, float]:
    """Eq. (15): element-wise weighted sum of the sites' global pieces.

    Returns:
        The new pieces, and the mean entropy of the weights divided by log K: 1 is plain averaging.
    """
    updates = in_site_order(updates)
    pieces: Pieces = {}
    total = 0.0
    for name in names:
        weights = _weights(updates, name, scale, temperature)
        # Eq. (15), with weights (K, ...) as K tensors
        pieces[name] = weighted_sum([update.pieces[name] for update in updates], list(weights))
        total += float(torch.special.entr(weights).sum())
    return pieces, _per_element(total, updates, names)


def similarity_entropy(updates: Sequence[Update], names: Sequence[str], *, scale: str, temperature: float) -> float:
    """Return the entropy that :func:`similarity_mean` would have with these settings."""
    updates = in_site_order(updates)
    total = sum(float(torch.special.entr(_weights(updates, n, scale, temperature)).sum()) for n in names)
    return _per_element(total, updates, names)


def _weights(updates: Sequence[Update], name: str, scale: str, temperature: float) -> Tensor:
    sensitivities = [update.extras["sensitivity"][name] for update in updates]
    return similarity_weights(sensitivities, scale=scale, temperature=temperature)


def _per_element(total: float, updates: Sequence[Update], names: Sequence[str]) -> float:
    elements = sum(updates[0].pieces[name].numel() for name in names)
    return normalised_entropy(total / max(elements, 1), len(updates))


def normalised_entropy(entropy: float, sites: int) -> float:
    """Divide an entropy in nats by its maximum, log(sites); that of one site is 1."""
    return entropy / math.log(sites) if sites > 1 else 1.0
