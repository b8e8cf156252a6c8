"""Weights as fixed-point integers modulo 2^64, which are added without rounding.

64 bits, since the sum of samples x weights has to fit: with 32 bits, 16 of them fractional, and 3,000 samples weights
beyond 10 would not; with 64 bits, 32 of them fractional, the largest is 357,913.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared_components.core.partition import Pieces

FRACTION_BITS = 32  # a weight's error is at most 2^-33, below float32's own for weights above 2^-9
BITS = 62  # of the sum's magnitude; one more is its sign, one is spare


@dataclass(frozen=True)
class FixedPoint:
    """The conversion of weights to integers and back."""

    total: int  # samples of all sites that may be in a sum
    fraction_bits: int = FRACTION_BITS

    @property
    def largest(self) -> float:
        """The largest weight; a sum fits even if every site has it."""
        return 2.0 ** (BITS - self.fraction_bits) / self.total

    @property
    def error(self) -> float:
        """The largest difference between a mean of weights and that of their integers."""
        return 2.0 ** -(self.fraction_bits + 1)

    def encode(self, pieces: Pieces, samples: int) -> np.ndarray:
        """Return samples x weights as one vector of uint64, the pieces in the order of their names.

        Raises:
            ValueError: A piece has values that are not finite or beyond `largest`; nothing is clipped.
        """
        if not 0 < samples <= self.total:
            raise ValueError(f"{samples} samples are not from 1 to {self.total}, those of all sites")
        flat = np.empty(sum(value.numel() for value in pieces.values()), dtype=np.int64)
        start = 0
        for name in sorted(pieces):
            whole = self._whole(name, pieces[name])
            flat[start : start + len(whole)] = whole
            start += len(whole)
        flat *= samples
        return flat.view(np.uint64)

    def _whole(self, name: str, value: Tensor) -> np.ndarray:
        numbers = value.detach().cpu().reshape(-1).double()
        if not bool((numbers.abs() <= self.largest).all()):
            raise ValueError(
                f"piece {name} has values that are not finite or beyond {self.largest:.6g}, the largest that a secure "
                f"sum of {self.total} samples holds with {self.fraction_bits} fraction bits; make secure_sums."
                "fraction_bits less"
            )
        return (numbers * 2.0**self.fraction_bits).round().long().numpy()

    def decode(self, summed: np.ndarray, samples: int, like: Pieces) -> Pieces:
        """Return the mean, weighted by samples, from the sum of the sites' vectors modulo 2^64 and of their samples.

        The pieces are named, shaped and typed as ``like``; integers, such as counts of steps, are rounded.
        """
        flat = torch.from_numpy(summed.view(np.int64)).double() / (2.0**self.fraction_bits * samples)
        pieces, start = {}, 0
        for name in sorted(like):
            value = like[name]
            mean = flat[start : start + value.numel()].reshape(value.shape)
            pieces[name] = (mean if value.is_floating_point() else mean.round()).to(value.dtype)
            start += value.numel()
        return {name: pieces[name] for name in like}


def as_pieces(vector: np.ndarray, like: Mapping[str, Tensor]) -> Pieces:
    """Return a vector of uint64 as int64 tensors of the pieces' shapes; undone by :func:`as_vector`."""
    signed, pieces, start = torch.from_numpy(vector.view(np.int64)), {}, 0
    for name in sorted(like):
        shape = like[name].shape
        pieces[name] = signed[start : start + shape.numel()].reshape(shape).clone()
        start += shape.numel()
    return pieces


def as_vector(pieces: Pieces) -> np.ndarray:
    """Undo :func:`as_pieces`."""
    return torch.cat([pieces[name].reshape(-1) for name in sorted(pieces)]).numpy().view(np.uint64)
