"""Shamir's secret sharing: any T shares give the secret, fewer reveal nothing (How to Share a Secret, CACM 1979)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

PRIME = 2**256 + 297  # the least above all secrets
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, *, threshold: int, count: int) -> list[bytes]:
    """Return the shares of places 1 to ``count`` of a secret of 32 bytes; ``threshold`` of them give it back.

    Raises:
        ValueError: The secret has another length, or the threshold is not from 1 to ``count``.
    """
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, and this one {len(secret)}")
    if not 1 <= threshold <= count:
        raise ValueError(f"threshold {threshold} is not from 1 to {count}, the number of shares")
    polynomial = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(polynomial, place).to_bytes(SHARE) for place in range(1, count + 1)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from T shares by their places; wrong or too few shares give other 32 bytes.

    Raises:
        ValueError: There is no share, or one is not below the prime.
    """
    if not shares:
        raise ValueError("no share is there")
    values = {place: int.from_bytes(share) for place, share in shares.items()}
    if any(value >= PRIME for value in values.values()):
        raise ValueError("a share is no number below the prime")
    total = 0
    for place, value in values.items():
        above = below = 1  # of the Lagrange coefficient of this place at 0
        for other in values:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return (total % PRIME % 2**256).to_bytes(SECRET)


def _value(polynomial: list[int], place: int) -> int:
    total = 0
    for coefficient in reversed(polynomial):
        total = (total * place + coefficient) % PRIME
    return total
