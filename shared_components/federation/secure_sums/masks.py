"""One attempt at a secure sum: mask a site's vector, open shares of the masks, remove the masks from the sum.

A site v sends x_v + m(b_v) + sum of m(s_vu) over later sites u - sum of m(s_vu) over earlier sites u, modulo 2^64
(Bonawitz et al., CCS 2017, Eq. in 4.0.2). b_v is new in every attempt. s_vu follows from the two sites' keys and the
attempt. m stretches 32 bytes to a vector (ChaCha20, RFC 8439). Each site sends shares of b_v and all s_vu, sealed, with
its masked vector. The other sites open b_v if the site's vector arrived; else they open its pairwise masks with the
sites whose vectors arrived.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from shared_components.common.counted import counted
from shared_components.federation.secure_sums.keys import NONCE, TAG, Keys, seal, unseal

PRIME = 2**256 + 297  # the smallest prime above all secrets
SECRET, SHARE = 32, 33  # bytes
_CHUNK = 1 << 20  # bytes of a mask made at once
_TRIES = 200  # combinations of shares to try if some do not fit


@dataclass(frozen=True)
class Attempt:
    """Public facts of one sum; keys, masks and shares are bound to all of them."""

    run: str  # job and run
    round: int  # from 0
    nonce: str  # new in this run
    sites: tuple[str, ...]  # sites that the round asks, in order
    threshold: int  # T, the smallest number of sites in a sum, and of sites that open it

    def __post_init__(self) -> None:
        if len(set(self.sites)) != len(self.sites):
            raise ValueError("the server names a site twice among those of a secure sum")
        check_threshold(self.threshold, len(self.sites))

    @cached_property
    def context(self) -> bytes:
        """SHA-256 of all fields."""
        values = [self.run, self.round, self.nonce, list(self.sites), self.threshold]
        return hashlib.sha256(json.dumps(values).encode()).digest()

    def others(self, site: str) -> list[str]:
        """Return all sites except one, in order."""
        return [other for other in self.sites if other != site]

    def adds(self, site: str, other: str) -> bool:
        """Return whether ``site`` adds its mask with ``other`` (or its own mask); else it subtracts the mask."""
        return self.sites.index(site) <= self.sites.index(other)


@dataclass(frozen=True)
class Masked:
    """Masked reply of a site."""

    vector: np.ndarray  # uint64
    shares: dict[str, bytes]  # sealed for each site
    hashes: dict[str, bytes]  # SHA-256 of the secrets: b_v under the site's own name, s_vu under the other sites'


def check_threshold(threshold: int, sites: int) -> None:
    """Check that a threshold is above half of the sites and at most all; ValueError otherwise."""
    if not sites < 2 * threshold <= 2 * sites:
        needed = f"a secure sum of {sites} sites needs a threshold above half of them and at most {sites}"
        raise ValueError(f"{needed}; secure_sums.threshold is {threshold}")


def sealed_bytes(sites: int) -> int:
    """Return the size of the sealed shares from one site to another: one share of each mask."""
    return NONCE + SHARE * sites + TAG


def mask(vector: np.ndarray, attempt: Attempt, keys: Keys, *, own: bytes | None = None) -> Masked:
    """Mask a site's vector, uint64, in place; never call it twice for the same attempt.

    ``own`` is b_v, 32 bytes, only given in tests; by default it comes from the operating system.
    """
    site, count = keys.site, len(attempt.sites)
    masks = {site: own or os.urandom(SECRET)}
    masks |= {other: keys.secret(other, b"mask" + attempt.context) for other in attempt.others(site)}
    for other, secret in masks.items():
        stretch(secret, vector, add=attempt.adds(site, other))
    rows = [split(secret, threshold=attempt.threshold, count=count) for secret in masks.values()]
    shares = {}
    for place, other in enumerate(attempt.sites):
        key, about = _envelope(attempt, keys, site, other)
        shares[other] = seal(key, b"".join(row[place] for row in rows), about)
    return Masked(vector, shares, {other: hashlib.sha256(secret).digest() for other, secret in masks.items()})


def unmask(attempt: Attempt, keys: Keys, sealed: Mapping[str, bytes]) -> dict[str, list[bytes]]:
    """Open the shares that the sites of a sum have sealed for this site.

    Return for each of these sites a share of its own mask, then shares of its masks with the sites that are not in the
    sum, in order. The masks between two sites of the sum stay closed.

    ValueError: the sum has fewer sites than the threshold, a site that was not asked, or not this site, or the sealed
    shares belong to another attempt.
    """
    if unknown := sorted(set(sealed) - set(attempt.sites)):
        raise ValueError(f"{unknown[0]} was not asked in round {attempt.round + 1}")
    if len(sealed) < attempt.threshold:
        sites = counted(len(sealed), "site")
        raise ValueError(f"the server asks to open a sum of {sites}; the threshold is {attempt.threshold}")
    if keys.site not in sealed:
        raise ValueError("the server asks to open a sum without this site")
    opened = {}
    for site, content in sealed.items():
        try:
            key, about = _envelope(attempt, keys, site, keys.site)
            rows = unseal(key, content, about)
        except ValueError as error:
            raise ValueError(f"the shares sealed by {site} cannot be opened: {error}") from error
        shares = [rows[start : start + SHARE] for start in range(0, len(rows), SHARE)]
        others = zip(attempt.others(site), shares[1:], strict=False)
        opened[site] = [shares[0], *(share for other, share in others if other not in sealed)]
    return opened


def take_off(
    attempt: Attempt, masked: Mapping[str, Masked], opened: Mapping[str, Mapping[str, Sequence[bytes]]]
) -> np.ndarray:
    """Return the exact sum of the sites' vectors modulo 2^64, from the shares opened by `unmask`.

    ValueError: fewer sites than the threshold have opened shares, or the shares of a mask do not fit together.
    """
    if len(opened) < attempt.threshold:
        raise ValueError(f"shares were opened by {counted(len(opened), 'site')}; the threshold is {attempt.threshold}")
    total = np.zeros_like(next(iter(masked.values())).vector)
    for sent in masked.values():
        total += sent.vector
    for site, sent in masked.items():
        absent = [other for other in attempt.others(site) if other not in masked]
        for number, other in enumerate([site, *absent]):
            shares = {1 + attempt.sites.index(name): bytes(rows[site][number]) for name, rows in opened.items()}
            secret = _join_shares(shares, attempt.threshold, sent.hashes[other], site)
            stretch(secret, total, add=not attempt.adds(site, other))
    return total


def stretch(secret: bytes, vector: np.ndarray, *, add: bool) -> None:
    """Add a secret's mask to a vector of uint64 modulo 2^64, or subtract it."""
    cipher = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor()
    zeros, buffer = bytes(_CHUNK), bytearray(_CHUNK)
    step = _CHUNK // 8
    for start in range(0, len(vector), step):
        part = vector[start : start + step]
        cipher.update_into(zeros[: 8 * len(part)], buffer)
        numbers = np.frombuffer(buffer, dtype="<u8", count=len(part))
        if add:
            part += numbers
        else:
            part -= numbers


def split(secret: bytes, *, threshold: int, count: int) -> list[bytes]:
    """Split a secret of 32 bytes into shares for places 1 to ``count``; any ``threshold`` shares give it back.

    Shamir, How to Share a Secret, CACM 1979: fewer shares reveal nothing. ValueError: another length, or a threshold
    that is not from 1 to ``count``.
    """
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, and this one {len(secret)}")
    if not 1 <= threshold <= count:
        raise ValueError(f"threshold {threshold} is not from 1 to {count}, the number of shares")
    polynomial = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for place in range(1, count + 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * place + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from shares by place; wrong or too few shares give 32 other bytes.

    ValueError: no share, or a share that is not below the prime.
    """
    if not shares:
        raise ValueError("no share is there")
    values = {place: int.from_bytes(share) for place, share in shares.items()}
    if any(value >= PRIME for value in values.values()):
        raise ValueError("a share is no number below the prime")
    total = 0
    for place, value in values.items():
        above = below = 1  # Lagrange coefficient of this place at 0
        for other in values:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return (total % PRIME % 2**256).to_bytes(SECRET)


def _join_shares(shares: Mapping[int, bytes], threshold: int, sha256: bytes, site: str) -> bytes:
    """Return the secret with the hash that its site sent, from any shares that fit together."""
    for chosen in islice(combinations(shares, threshold), _TRIES):
        try:
            secret = join({place: shares[place] for place in chosen})
        except ValueError:
            continue
        if hashlib.sha256(secret).digest() == sha256:
            return secret
    raise ValueError(f"the shares of a mask of {site} do not fit together; the sum cannot be opened")


def _envelope(attempt: Attempt, keys: Keys, sender: str, receiver: str) -> tuple[bytes, bytes]:
    """Return the key that seals shares from one site to another, and the text that authenticates them."""
    other = sender if receiver == keys.site else receiver
    pair = json.dumps([sender, receiver]).encode()
    return keys.secret(other, b"shares of " + pair), attempt.context + pair
