"""Clipped Gaussian noise on what leaves a site, and what it promises: pure functions, no files.

The unit is the whole of a site's data: two data sets of one site are neighbours whatever either holds, and the server
is not trusted (local differential privacy, Kasiviswanathan et al., SIAM J. Comput. 2011; for federated learning
Bhowmick et al., arXiv 1812.00984). A clipped update has norm C at most, so those of two data sets are up to 2C apart,
not C: noise of z C is z/2 times the sensitivity. Nothing is gained from drawing sites at random, since the server that
draws them is whom the noise is against.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared_components.core.partition import Pieces

Randomness = Callable[[int], bytes]
"""Returns as many random bytes as it is asked for."""

UNIT = "all data of a site"
DELTA = 1e-5
# alpha - 1 from 1e-5 to 1e6, 50 to a factor of ten: the best of them costs less than 0.03 % of epsilon
ORDERS = 1 + np.logspace(-5, 6, 551)


@dataclass(frozen=True)
class Privacy:
    """What a job's ``privacy`` says; its ranges are in `federation.job_ranges`.

    Attributes:
        clip: C, the largest L2 norm of an update.
        noise_multiplier: z; the noise's standard deviation is z C.
        delta: At which epsilon is reported.
    """

    clip: float
    noise_multiplier: float
    delta: float = DELTA


def clip_and_noise(
    received: Pieces,
    trained: Pieces,
    *,
    clip: float,
    noise_multiplier: float,
    random: Randomness = os.urandom,
    variances: Collection[str] = (),
) -> tuple[Pieces, float]:
    """Return what was received, plus the clipped change of it, plus noise.

    All floating pieces are clipped together: their change is scaled to the L2 norm ``clip`` where it has more. Whole
    numbers (counts of batches) stay as they were received.

    Args:
        received: What the training began with.
        trained: What it ended with; the same names, shapes and kinds of number.
        clip: Above 0; infinity clips nothing.
        noise_multiplier: 0 adds nothing.
        random: The operating system's, but in tests: torch's generator has no more than 2^32 seeds, and both it and
            numpy's tell by a few of their numbers what the others are.
        variances: Pieces that are no less than 0; noise leaves none below it.

    Returns:
        The pieces, and the norm of the change before it was clipped, which is as secret as the data.

    Raises:
        FloatingPointError: The change is not finite.
    """
    moving = [name for name, value in received.items() if value.is_floating_point()]
    changes = {name: trained[name].double() - received[name].double() for name in moving}
    norm = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
    if not math.isfinite(norm):
        raise FloatingPointError(
            "the training ended with weights that are not finite; lower learning_rate or check the labels"
        )
    factor = min(1.0, clip / norm) if norm else 1.0
    sent = {name: value.clone() for name, value in received.items()}
    for name, change in changes.items():
        change *= factor
        if noise_multiplier:
            change += noise_multiplier * clip * normal(change.numel(), random).view(change.shape)
        # what was received comes last: all rounding is then of the noisy change, which spends nothing
        value = received[name].double() + change
        sent[name] = (value.clamp(min=0) if name in variances else value).to(received[name].dtype)
    return sent, norm


def normal(count: int, random: Randomness = os.urandom) -> Tensor:
    """Draw from the standard normal distribution by Box and Muller (Ann. Math. Statist. 1958), float64 (count,).

    Of 53 bits each, so that no number is beyond 8.7.
    """
    half = (count + 1) // 2
    bits = np.frombuffer(random(16 * half), dtype="<u8").reshape(2, half) >> 11
    radius, angle = (bits + 0.5) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(radius)), 2 * np.pi * angle
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])


def epsilon(releases: Mapping[float, int], delta: float) -> float:
    """Return the epsilon of everything that a site has sent, for `UNIT`.

    By Rényi's divergence: 2 alpha / z^2 for every release (Mironov, CSF 2017, Corollary 3, at a sensitivity of 2C),
    summed, then the best order's epsilon (Balle et al., AISTATS 2020, Theorem 21); both are opacus'. What the site
    keeps between releases need not be noisy: whatever it is, what is sent next is a clipped update with fresh noise.

    Args:
        releases: How many were sent by noise multiplier.
        delta: Between 0 and 1.
    """
    if not any(releases.values()):
        return 0.0
    from opacus.accountants.analysis import rdp  # late: 1.6 s, and few jobs have noise

    spent = sum(
        rdp.compute_rdp(q=1.0, noise_multiplier=multiplier / 2, steps=count, orders=ORDERS)
        for multiplier, count in releases.items()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a best order at an end; its epsilon holds all the same
        found, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(found))


def farthest(privacy: Privacy, count: int) -> float:
    """Return how far a clipped and noisy update of ``count`` numbers goes, but for once in 10^13."""
    return privacy.clip * (1 + privacy.noise_multiplier * (math.sqrt(count) + 8))
