"""Weights as fixed-point integers modulo 2^64, which are added without rounding.

The sum of samples x weights must fit. With 3,000 samples, 32 bits (16 of them fractional) would limit weights to 10; 64
bits (32 fractional) limit them to 357,913.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared_components.core.partition import Pieces

FRACTION_BITS = 32  # error of at most 2^-33, below the error of float32 for weights above 2^-9
BITS = 62  # magnitude of the sum; one more bit is the sign, one is spare


@dataclass(frozen=True)
class FixedPoint:
    """Conversion of weights to integers and back."""

    total: int  # samples of all sites in the run
    fraction_bits: int = FRACTION_BITS

    @property
    def largest(self) -> float:
        """Largest weight; the sum fits even if all sites have it."""
        return 2.0 ** (BITS - self.fraction_bits) / self.total

    @property
    def error(self) -> float:
        """Largest error of a mean of weights."""
        return 2.0 ** -(self.fraction_bits + 1)

    def encode(self, pieces: Pieces, samples: int) -> np.ndarray:
        """Return samples x weights as one vector of uint64, pieces in order of name.

        ValueError: a piece has values that are not finite or beyond `largest`; nothing is clipped.
        """
        if not 0 < samples <= self.total:
            raise ValueError(f"{samples} samples are not from 1 to {self.total}, those of all sites")
        flat = np.empty(sum(value.numel() for value in pieces.values()), dtype=np.int64)
        start = 0
        for name in sorted(pieces):
            numbers = pieces[name].detach().cpu().reshape(-1).double()
            if not bool((numbers.abs() <= self.largest).all()):
                limit = f"a secure sum of {self.total} samples with {self.fraction_bits} fraction bits"
                problem = f"piece {name} has values that are not finite or beyond {self.largest:.6g}"
                raise ValueError(f"{problem}, the limit of {limit}; lower secure_sums.fraction_bits")
            flat[start : start + len(numbers)] = (numbers * 2.0**self.fraction_bits).round().long().numpy()
            start += len(numbers)
        flat *= samples
        return flat.view(np.uint64)

    def decode(self, summed: np.ndarray, samples: int, like: Pieces) -> Pieces:
        """Return the mean weighted by samples, from the sum of the sites' vectors modulo 2^64 and of their samples.

        Names, shapes and types are those in ``like``; integers, such as counts of steps, are rounded.
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
    """Return a vector of uint64 as int64 tensors with the pieces' shapes."""
    signed, pieces, start = torch.from_numpy(vector.view(np.int64)), {}, 0
    for name in sorted(like):
        shape = like[name].shape
        pieces[name] = signed[start : start + shape.numel()].reshape(shape).clone()
        start += shape.numel()
    return pieces


def as_vector(pieces: Pieces) -> np.ndarray:
    """Return the vector of uint64 that `as_pieces` has split."""
    return torch.cat([pieces[name].reshape(-1) for name in sorted(pieces)]).numpy().view(np.uint64)
