"""One attempt at one round: mask a site's vector, open shares of the masks, remove the masks from the sum.

A site's vector x_v leaves as x_v + m(b_v) + sum over the sites u after it of m(s_vu) - sum over those before it of
m(s_vu), modulo 2^64 (Bonawitz et al., CCS 2017, Eq. in 4.0.2). b_v is drawn anew for every attempt, s_vu follows from
the two sites' keys and the attempt, and m stretches 32 bytes to a vector (ChaCha20, RFC 8439). Shares of b_v and of all
s_vu travel sealed with the masked vector: of a site that has sent one the others open b_v, of one that has not its
pairwise masks with those that have.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from shared_components.common.counted import counted
from shared_components.federation.secure_sums.keys import NONCE, TAG, Keys, seal, unseal
from shared_components.federation.secure_sums.shares import SECRET, SHARE, join, split

_STRETCH = 1 << 20  # bytes of a mask that are made at once
_TRIES = 200  # sets of shares that are tried where some do not fit


@dataclass(frozen=True)
class Attempt:
    """The public facts of one sum, to which every key, mask and share is bound."""

    run: str  # job and run
    round: int  # from 0
    nonce: str  # never used before in this run
    sites: tuple[str, ...]  # that the round asks, in order
    threshold: int  # T, the least number of sites in a sum, and of those that open it

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
        """Return the sites beside one, in order."""
        return [other for other in self.sites if other != site]


@dataclass(frozen=True)
class Masked:
    """The masked reply of a site."""

    vector: np.ndarray  # uint64
    shares: dict[str, bytes]  # sealed for each site
    hashes: dict[str, bytes]  # SHA-256 of its own mask's secret under its own name, and of those with the others


def check_threshold(threshold: int, sites: int) -> None:
    """Refuse, by a ValueError, a threshold that two halves of the sites could both reach, or all sites could not."""
    if not sites < 2 * threshold <= 2 * sites:
        raise ValueError(
            f"a secure sum of {sites} sites needs a threshold above half of them and at most {sites}; "
            f"secure_sums.threshold is {threshold}"
        )


def sealed_bytes(sites: int) -> int:
    """Return the size of what one of so many sites seals for another: a share of each of its masks."""
    return NONCE + SHARE * sites + TAG


def mask(vector: np.ndarray, attempt: Attempt, keys: Keys, *, own: bytes | None = None) -> Masked:
    """Mask a site's vector, uint64, in place; never call it twice for the same attempt.

    ``own`` is b_v, 32 bytes, given in tests alone; else it comes from the operating system.
    """
    site, count = keys.site, len(attempt.sites)
    found = {site: own or os.urandom(SECRET)}
    found |= {other: keys.secret(other, b"mask" + attempt.context) for other in attempt.others(site)}
    for other, secret in found.items():
        stretch(secret, vector, add=other == site or _is_before(attempt, site, other))
    rows = [split(secret, threshold=attempt.threshold, count=count) for secret in found.values()]
    shares = {}
    for place, other in enumerate(attempt.sites):
        content = b"".join(row[place] for row in rows)
        shares[other] = seal(_envelope(keys, site, other), content, _about(attempt, site, other))
    return Masked(vector, shares, {other: hashlib.sha256(secret).digest() for other, secret in found.items()})


def unmask(attempt: Attempt, keys: Keys, sealed: Mapping[str, bytes]) -> dict[str, list[bytes]]:
    """Open the shares that the sites of a sum have sealed for this one.

    Returns:
        For each of these sites a share of its own mask, then of its masks with the sites that are not in the sum, in
        order. Never more: the masks between two sites of the sum stay closed.

    Raises:
        ValueError: The sum has fewer sites than the threshold, a site that was not asked, or not this site, or sealed
            shares are not of this attempt.
    """
    if odd := sorted(set(sealed) - set(attempt.sites)):
        raise ValueError(f"{odd[0]} was not asked in round {attempt.round + 1}")
    if len(sealed) < attempt.threshold:
        raise ValueError(
            f"the server asks to open a sum of {counted(len(sealed), 'site')}; the threshold is {attempt.threshold}"
        )
    if keys.site not in sealed:
        raise ValueError("the server asks to open a sum without this site")
    opened = {}
    for site, content in sealed.items():
        try:
            rows = unseal(_envelope(keys, site, keys.site), content, _about(attempt, site, keys.site))
        except ValueError as error:
            raise ValueError(f"what {site} has sealed cannot be opened: {error}") from error
        shares = [rows[start : start + SHARE] for start in range(0, len(rows), SHARE)]
        places = {other: 1 + number for number, other in enumerate(attempt.others(site))}
        absent = [other for other in attempt.others(site) if other not in sealed]
        opened[site] = [shares[0], *(shares[places[other]] for other in absent)]
    return opened


def take_off(
    attempt: Attempt, masked: Mapping[str, Masked], opened: Mapping[str, Mapping[str, Sequence[bytes]]]
) -> np.ndarray:
    """Return the sum of the sites' vectors modulo 2^64, which is exact, by what others have opened (see `unmask`).

    Raises:
        ValueError: Fewer than the threshold have opened, or the shares of a site's masks do not fit together.
    """
    if len(opened) < attempt.threshold:
        raise ValueError(f"shares were opened by {counted(len(opened), 'site')}; the threshold is {attempt.threshold}")
    total = np.zeros_like(next(iter(masked.values())).vector)
    for sent in masked.values():
        total += sent.vector
    for site, sent in masked.items():
        absent = [other for other in attempt.others(site) if other not in masked]
        for number, other in enumerate([site, *absent]):
            place = {name: 1 + attempt.sites.index(name) for name in opened}
            shares = {place[name]: bytes(opened[name][site][number]) for name in opened}
            secret = _join_shares(shares, attempt.threshold, sent.hashes[other], site)
            stretch(secret, total, add=not (other == site or _is_before(attempt, site, other)))
    return total


def stretch(secret: bytes, vector: np.ndarray, *, add: bool) -> None:
    """Add a secret's mask to a vector of uint64 modulo 2^64, or subtract it."""
    cipher = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor()
    zeros, buffer = bytes(_STRETCH), bytearray(_STRETCH)
    step = _STRETCH // 8
    for start in range(0, len(vector), step):
        part = vector[start : start + step]
        cipher.update_into(zeros[: 8 * len(part)], buffer)
        numbers = np.frombuffer(buffer, dtype="<u8", count=len(part))
        if add:
            part += numbers
        else:
            part -= numbers


def _join_shares(shares: Mapping[int, bytes], threshold: int, sha256: bytes, site: str) -> bytes:
    """Return the secret with the hash that its site has sent, from any shares that give it."""
    for chosen in islice(combinations(shares, threshold), _TRIES):
        try:
            secret = join({place: shares[place] for place in chosen})
        except ValueError:
            continue
        if hashlib.sha256(secret).digest() == sha256:
            return secret
    raise ValueError(f"the shares of a mask of {site} do not fit together; the sum cannot be opened")


def _is_before(attempt: Attempt, site: str, other: str) -> bool:
    return attempt.sites.index(site) < attempt.sites.index(other)


def _envelope(keys: Keys, sender: str, receiver: str) -> bytes:
    other = sender if receiver == keys.site else receiver
    return keys.secret(other, b"shares of " + json.dumps([sender, receiver]).encode())


def _about(attempt: Attempt, sender: str, receiver: str) -> bytes:
    return attempt.context + json.dumps([sender, receiver]).encode()
