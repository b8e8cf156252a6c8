"""Sites with keys of their own, and one attempt at a sum among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from shared_components.federation.secure_sums.keys import Keys, public_of
from shared_components.federation.secure_sums.masks import Attempt, Masked, mask, take_off, unmask


def private_of(number: int) -> bytes:
    return bytes([number + 1]) * 32


def make_keys(count: int) -> dict[str, Keys]:
    names = [f"site-{number + 1}" for number in range(count)]
    public = {name: public_of(private_of(number)) for number, name in enumerate(names)}
    return {name: Keys(name, private_of(number), public) for number, name in enumerate(names)}


def make_attempt(count: int, *, threshold: int | None = None, nonce: str = "a", round: int = 0) -> Attempt:
    """Return an attempt among all sites, by default with the least threshold."""
    sites = tuple(f"site-{number + 1}" for number in range(count))
    return Attempt("job/run", round, nonce, sites, threshold or count // 2 + 1)


def vectors_of(count: int, length: int = 1000) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    return {f"site-{number + 1}": generator.integers(0, 2**64, length, dtype=np.uint64) for number in range(count)}


def masked_by_all(attempt: Attempt, keys: Mapping[str, Keys], vectors: Mapping[str, np.ndarray]) -> dict[str, Masked]:
    return {site: mask(vectors[site].copy(), attempt, keys[site]) for site in attempt.sites}


def opened_by(
    attempt: Attempt, keys: Mapping[str, Keys], masked: Mapping[str, Masked], answering: Collection[str]
) -> dict[str, dict[str, list[bytes]]]:
    """Let some sites open their shares of the sum of all that is there."""
    return {
        site: unmask(attempt, keys[site], {sender: sent.shares[site] for sender, sent in masked.items()})
        for site in answering
    }


def open_sum(attempt: Attempt, keys: Mapping[str, Keys], masked: Mapping[str, Masked], answering: Collection[str]):
    return take_off(attempt, masked, opened_by(attempt, keys, masked, answering))
