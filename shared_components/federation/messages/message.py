"""Messages between server and site: raw, and parsed and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shared_components.core.partition import Pieces
from shared_components.federation.messages.job import Job


class FederationError(RuntimeError):
    """Error that ends the job; the message is one sentence for a person."""


class SiteRefusal(FederationError):
    """Refusal of a site to take part; the message names the site, the file or key, and the remedy."""


class RejectedUpdate(ValueError):
    """Reply that must not be aggregated; the message is the reason."""


@dataclass(frozen=True)
class Message:
    """Plain values and tensors, not checked.

    Groups are extras of a method, the server's broadcast, and at the finish a site's ``model``.
    """

    header: dict[str, Any]
    pieces: Mapping[str, Tensor] = field(default_factory=dict)  # GLOBAL and MIXED pieces of the network
    groups: dict[str, Pieces] = field(default_factory=dict)


class Reply(Message):
    """A site's reply, checked. Only `parse_reply` builds it."""


@dataclass(frozen=True)
class Place:
    """A site's place among the enrolled sites (``number``) and among the sites that take part (``index``)."""

    number: int
    numbers: int  # number of sites asked to enrol
    index: int
    sites: int  # number of sites that take part


@dataclass(frozen=True)
class Request:
    """A server's message to a site, checked. Only `parse_request` builds it."""

    task: str  # enrol, round, unmask or finish
    job: Job
    run: str
    round: int
    place: Place
    send_initial: bool = False  # whether the site sends its first weights
    items: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # profile items of all sites, in order
    answered: int | None = None  # the last round in which this site's update counted
    pool: Sequence[str] = ()  # all sites, if the method pools their data
    sums: Mapping[str, Any] = field(default_factory=dict)  # section of a secure sum
    pieces: Mapping[str, Tensor] = field(default_factory=dict)
    groups: dict[str, Pieces] = field(default_factory=dict)


def total_bytes(pieces: Mapping[str, Tensor]) -> int:
    """Return the number of bytes of all tensors."""
    return sum(value.numel() * value.element_size() for value in pieces.values())


def all_finite(value: Tensor) -> bool:
    """Return whether a tensor has neither NaN nor infinity; integers always are finite."""
    return not value.is_floating_point() or bool(torch.isfinite(value).all())
