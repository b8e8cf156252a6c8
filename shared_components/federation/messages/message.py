"""Messages between server and site: as they arrive, and as values that were parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from shared_components.core.partition import Pieces
from shared_components.federation.messages.job import Job


class FederationError(RuntimeError):
    """The job cannot go on; the message is one sentence for a person."""


class SiteRefusal(FederationError):
    """A site cannot or will not take part; the message names the site, the file or key, and what to do."""


class RejectedUpdate(ValueError):
    """A reply that must not be aggregated; the message is the reason."""


@dataclass(frozen=True)
class Message:
    """Plain values and tensors, not checked.

    The groups are tensors beside the network's: a method's extras, what its server broadcasts, and at the finish a
    consenting site's ``model``.
    """

    header: dict[str, Any]
    pieces: Mapping[str, Tensor] = field(default_factory=dict)  # GLOBAL and MIXED ones of the network
    groups: dict[str, Pieces] = field(default_factory=dict)


class Reply(Message):
    """A site's reply, checked by `parse_reply`: nothing else builds one."""


@dataclass(frozen=True)
class Place:
    """A site's place among all sites that were asked to enrol, and among the sites that take part."""

    number: int
    numbers: int  # how many were asked to enrol
    index: int
    sites: int  # how many take part


@dataclass(frozen=True)
class Request:
    """A server's message to a site, checked by `parse_request`: nothing else builds one."""

    task: str  # enrol, round, unmask or finish
    job: Job
    run: str
    round: int
    place: Place
    send_initial: bool = False  # whether the site sends its first weights
    items: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # profile items of all sites, in order
    answered: int | None = None  # the last round in which this site's update counted
    pool: Sequence[str] = ()  # all sites, if the method pools their data
    sums: Mapping[str, Any] = field(default_factory=dict)  # what the server asks of a secure sum
    pieces: Mapping[str, Tensor] = field(default_factory=dict)
    groups: dict[str, Pieces] = field(default_factory=dict)


def total_bytes(pieces: Mapping[str, Tensor]) -> int:
    """Return the bytes of the numbers themselves."""
    return sum(value.numel() * value.element_size() for value in pieces.values())
