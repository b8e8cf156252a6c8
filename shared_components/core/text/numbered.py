"""Vectors of sites that are numbered and not described: what FedST compares its text with (Table 7)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shared_components.common.arguments import between
from shared_components.core.text.vector import Vector

DEVIATION = 0.1  # FedST, section 4.3.4
_RANDOM, _GAUSSIAN = 1, 2  # streams of chance


def random(text: str, *, site: int, sites: int, width: int, seed: int = 0) -> Vector:
    """Draw a vector of length 1 in a direction that says nothing of the site, another one for every site.

    Args:
        text: The site's, kept and not read.
        site: The site's number, from 0.
        sites: How many there are, those outside the federation included.
        width: D.
        seed: Of the run; the same seed and site give the same numbers in every process.

    Raises:
        ValueError: A number is out of its range.
    """
    _check("random", site, sites, width, least=1)
    return Vector(_of_length_1(_normal("random", seed, site, _RANDOM, width)), "random", text=text)


def gaussian(text: str, *, site: int, sites: int, width: int, seed: int = 0) -> Vector:
    """Draw about the site's one-hot vector with a standard deviation of 0.1 in every number, and bring it to length 1.

    The paper's sentence can also be read as a mean equal to the site's number throughout; "centered at the one-hot
    value" is followed here. Arguments and errors as of :func:`random`; ``width`` is ``sites`` or more.
    """
    _check("gaussian", site, sites, width, least=sites)
    drawn = DEVIATION * _normal("gaussian", seed, site, _GAUSSIAN, width)
    return Vector(_of_length_1(_one_hot(site, width) + drawn), "gaussian", text=text)


def one_hot(text: str, *, site: int, sites: int, width: int, seed: int = 0) -> Vector:
    """Return 1 at the site's number and 0 elsewhere; arguments and errors as of :func:`gaussian`."""
    _check("one_hot", site, sites, width, least=sites)
    return Vector(_one_hot(site, width), "one_hot", text=text)


def _check(kind: str, site: int, sites: int, width: int, *, least: int) -> None:
    between(kind, "sites", sites, 1, whole=True)
    between(kind, "site", site, 0, sites - 1, whole=True)
    between(kind, "width", width, least, whole=True)


def _one_hot(site: int, width: int) -> Tensor:
    return torch.eye(1, width)[0].roll(site)


def _of_length_1(values: Tensor) -> Tensor:
    """Bring a vector to the length of a text's (`sentence`), so that Table 7 compares directions alone."""
    return values / values.norm()


def _normal(kind: str, seed: int, site: int, stream: int, width: int) -> Tensor:
    between(kind, "seed", seed, 0, whole=True)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, site, stream))))
    return torch.from_numpy(rng.standard_normal(width, dtype=np.float32))
