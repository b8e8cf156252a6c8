"""Secure sums in jobs and messages: section of the job, suitable methods, checks of tensors."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from shared_components.common.schema import Schema
from shared_components.core.method import Method
from shared_components.core.partition import Pieces
from shared_components.federation.secure_sums.fixed_point import FRACTION_BITS

KEY = "sums_key"  # in the header of an enrolment
HEADER = "sums"  # in the header of a round and of `unmask`
MASKED, SHARES, HASHES, OPENED = "masked", "shares", "hashes", "opened"  # groups of tensors


class SecureSums(Schema, frozen=True):
    """A job's section ``secure_sums``.

    Attributes:
        threshold: Smallest number of sites in a sum; more than half of the sites.
        fraction_bits: Number of a weight's bits after the binary point.
    """

    threshold: Annotated[int, Meta(ge=2, le=10_000)]
    fraction_bits: Annotated[int, Meta(ge=8, le=48)] = FRACTION_BITS


def check_method(method: Method) -> None:
    """Refuse a method whose server needs more than the weighted sum; raise ValueError."""
    if method.server.weighted_sum_only:
        return
    because = method.about.secure_sums.partition(": ")[2] or "its server needs more than a weighted sum"
    remedy = "leave the section out, or choose a method with 'yes' in the last column of docs/reference/methods.md"
    raise ValueError(f"{method.name} does not work with secure_sums ({because}); {remedy}")


def as_tensors(content: Mapping[str, bytes]) -> Pieces:
    """Return bytes by name as tensors of uint8."""
    return {name: torch.tensor(list(value), dtype=torch.uint8) for name, value in content.items()}


def as_bytes(value: Tensor) -> bytes:
    """Return the bytes of a tensor of uint8."""
    return value.contiguous().numpy().tobytes()


def bytes_of(content: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Return the bytes of tensors of uint8 by name."""
    return {name: as_bytes(value) for name, value in content.items()}


def check_bytes(group: str, content: Pieces, expected: Sequence[str], shape: tuple[int, ...]) -> None:
    """Check that a group has uint8 tensors of this shape for the expected names; ValueError names the first error."""
    if wrong := sorted(set(content) ^ set(expected)):
        raise ValueError(f"its {group} of {wrong[0]} {'are missing' if wrong[0] in expected else 'are not due'}")
    for name, value in content.items():
        if value.dtype != torch.uint8 or tuple(value.shape) != shape:
            raise ValueError(f"its {group} of {name} are {value.dtype} {tuple(value.shape)}; uint8 {shape} are due")


def check_masked(groups: Mapping[str, Pieces], like: Pieces, sites: Sequence[str], sealed: int) -> None:
    """Check the groups of a masked answer; ValueError names group and tensor.

    ``like`` are the summed pieces, ``sites`` the sites that the round asks, and ``sealed`` the number of bytes from one
    site to another. Only the site itself can check the masked weights.
    """
    if set(groups) != {MASKED, SHARES, HASHES}:
        raise ValueError(f"it carries the groups {sorted(groups)}; a masked answer has masked, shares and hashes")
    if wrong := sorted(set(groups[MASKED]) ^ set(like)):
        raise ValueError(f"its masked piece {wrong[0]} is {'missing' if wrong[0] in like else 'not due'}")
    for name, value in groups[MASKED].items():
        if value.dtype != torch.int64 or value.shape != like[name].shape:
            form, due = f"{value.dtype} {tuple(value.shape)}", f"torch.int64 {tuple(like[name].shape)}"
            raise ValueError(f"its masked piece {name} is {form}; {due} is due")
    check_bytes(SHARES, groups[SHARES], sites, (sealed,))
    check_bytes(HASHES, groups[HASHES], sites, (32,))


class PublicKey(Schema, frozen=True):
    """A site's public key from `site.secure_sums.Masked`; with a startup kit, also signature and certificate."""

    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{2,2048}\Z")] = ""
    certificate: Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/=\n -]{1,20000}\Z")] = ""
