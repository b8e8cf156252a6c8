"""Clipped Gaussian noise on a site's update, and the epsilon that it guarantees.

The unit of privacy is all data of a site: any two data sets of a site are neighbours, and the server is not trusted
(local differential privacy, Kasiviswanathan et al., SIAM J. Comput. 2011; in federated learning, Bhowmick et al., arXiv
1812.00984). A clipped update has at most norm C. The updates of two data sets are thus up to 2C apart, and noise of z C
is z/2 times the sensitivity. Client sampling does not amplify privacy, since the noise protects from the server.
"""

import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from shared_components.common.schema import Schema
from shared_components.core.method import Method
from shared_components.core.partition import Pieces
from shared_components.core.training import REMEDY

Randomness = Callable[[int], bytes]
"""(number of bytes) -> random bytes."""

Clip = Annotated[float, Meta(gt=0, le=1_000_000)]
Multiplier = Annotated[float, Meta(gt=0, le=1_000_000)]
Delta = Annotated[float, Meta(gt=0, le=0.1)]

UNIT = "all data of a site"
DELTA = 1e-5
# alpha - 1 from 1e-5 to 1e6, 50 per factor of ten: the error of epsilon is below 0.03 %
ORDERS = 1 + np.logspace(-5, 6, 551)


class Privacy(Schema, frozen=True):
    """A job's section ``privacy``.

    Attributes:
        clip: Largest L2 norm C of an update; a larger update is scaled down.
        noise_multiplier: z; the noise has the standard deviation z C.
        delta: The delta at which epsilon is reported.
    """

    clip: Clip
    noise_multiplier: Multiplier
    delta: Delta = DELTA


def clip_and_noise(
    received: Pieces,  # before training
    trained: Pieces,  # after training, with the same names, shapes and types
    *,
    clip: float,  # above 0; infinity does not clip
    noise_multiplier: float,  # 0 adds no noise
    random: Randomness = os.urandom,
    variances: Collection[str] = (),  # names of pieces that must not become negative
) -> tuple[Pieces, float]:
    """Return the received pieces plus their clipped change plus noise.

    The change of all floating pieces together is scaled to the L2 norm ``clip`` if it is larger. Integers (counts of
    batches) stay as received. Return also the norm of the change before clipping, which is as secret as the data.
    ``random`` is the operating system's except in tests. The generators of torch and numpy are not safe: torch has only
    2^32 seeds, and a few numbers reveal the others. FloatingPointError: the change is not finite.
    """
    moving = [name for name, value in received.items() if value.is_floating_point()]
    changes = {name: trained[name].double() - received[name].double() for name in moving}
    norm = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
    if not math.isfinite(norm):
        raise FloatingPointError(f"the training ended with weights that are not finite; {REMEDY}")
    factor = min(1.0, clip / norm) if norm else 1.0
    sent = {name: value.clone() for name, value in received.items()}
    for name, change in changes.items():
        change *= factor
        if noise_multiplier:
            change += noise_multiplier * clip * normal(change.numel(), random).view(change.shape)
        # the sum is rounded after the noise, which costs no privacy
        value = received[name].double() + change
        sent[name] = (value.clamp(min=0) if name in variances else value).to(received[name].dtype)
    return sent, norm


def normal(count: int, random: Randomness = os.urandom) -> Tensor:
    """Draw ``count`` standard normal numbers, float64, by Box and Muller (Ann. Math. Statist. 1958).

    Each number comes from 53 random bits, so that none is beyond 8.7.
    """
    half = (count + 1) // 2
    bits = np.frombuffer(random(16 * half), dtype="<u8").reshape(2, half) >> 11
    radius, angle = (bits + 0.5) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(radius)), 2 * np.pi * angle
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])


def epsilon(releases: Mapping[float, int], delta: float) -> float:
    """Return the epsilon, for `UNIT`, of all updates that a site has sent.

    The Rényi divergences 2 alpha / z^2 of the updates (Mironov, CSF 2017, Corollary 3, sensitivity 2C) are summed and
    converted with the best order (Balle et al., AISTATS 2020, Theorem 21), by opacus. State that the site keeps between
    updates needs no noise, since each update is clipped and has fresh noise. ``releases`` is the number of updates by
    noise multiplier.
    """
    if not any(releases.values()):
        return 0.0
    from opacus.accountants.analysis import rdp  # late: takes 1.6 s

    spent = sum(
        rdp.compute_rdp(q=1.0, noise_multiplier=multiplier / 2, steps=count, orders=ORDERS)
        for multiplier, count in releases.items()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the best order may be the first or last; epsilon is still valid
        value, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(value))


def farthest(privacy: Privacy, count: int) -> float:
    """Return a bound of the norm of a clipped, noisy update of ``count`` numbers, exceeded with chance 10^-13."""
    return privacy.clip * (1 + privacy.noise_multiplier * (math.sqrt(count) + 8))


def why_not_private(method: Method) -> str:
    """Return why noise on the weights does not cover everything that a method sends; empty if it does."""
    if method.requires.pooled:
        why = "pools the sites' frames"
    elif method.local.extras:
        why = f"sends {min(method.local.extras)!r} beside the weights"
    elif method.requires.items:
        why = f"needs {min(method.requires.items)!r} of every site"
    else:
        return ""
    remedy = "choose a method or arguments that send only weights (docs/explanation/privacy.md)"
    return f"{method.name} {why}, which the job's 'privacy' does not cover; {remedy}"
