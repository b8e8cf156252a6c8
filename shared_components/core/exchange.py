"""Define what sites and server exchange in a round: profiles, updates, models, extras and aggregations."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from shared_components.core.card import Card
from shared_components.core.partition import CheckExtra, Partition, Pieces

State = dict[str, Tensor]
Extras = dict[str, Pieces]


@dataclass(frozen=True)
class Profile:
    """Description of a site, sent once at enrolment."""

    site: str
    samples: int  # number of training samples
    card: Card
    items: Mapping[str, Any] = field(default_factory=dict)  # published items, by name
    fixed: str = ""  # hash of the untrained weights
    prepared: str = ""  # encoder of the network's untrained inputs, see `Local.condition_on_site`
    start: Mapping[str, str] = field(default_factory=lambda: {"start": "random", "sha256": ""})


@dataclass(frozen=True)
class Update:
    """Reply of a site after its local iterations of one round."""

    site: str
    round: int
    pieces: Mapping[str, Tensor]  # GLOBAL and MIXED
    extras: Extras = field(default_factory=dict)  # e.g. {"sensitivity": {piece name: tensor}}
    samples: int = 1


@dataclass(frozen=True)
class Models:
    """Weights at the start of a round: GLOBAL pieces for all sites, MIXED pieces per site."""

    shared: Pieces
    mixed: Mapping[str, Pieces]
    broadcast: Mapping[str, Pieces] = field(default_factory=dict)  # more tensors by group

    def of(self, site: str) -> Pieces:
        return {**self.shared, **self.mixed.get(site, {})}


@dataclass(frozen=True)
class Aggregation:
    """Result of one server step: next state, models to send, numbers for the record."""

    state: State
    models: Models
    report: dict[str, Any] = field(default_factory=dict)


class Aggregator(Protocol):
    """Server side of a method: two pure functions; sums run in sorted site order, never in arrival order."""

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the state before the first round."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Combine the updates of a round that started from ``models``: one or more sites, in any order."""


class StatelessStart:
    """Mixin with the ``init`` of an aggregator without initial state."""

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return an empty state."""
        return {}


def site_order(names: Iterable[str]) -> list[str]:
    """Sort site names in natural order (``site-2`` before ``site-10``): the order of all sums and seeds."""
    # text and digits alternate, so that keys of two names are comparable
    return sorted(names, key=lambda n: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", n)])


@dataclass(frozen=True)
class Extra:
    """Declaration of a group of tensors that a site sends in addition to its pieces."""

    check: CheckExtra
    shapes: Callable[[Pieces, Pieces], Mapping[str, tuple[int, ...]]]  # shapes by (shared pieces, state of the network)

    def __call__(self, group: Pieces, shared: Pieces) -> None:
        self.check(group, shared)


def like_shared(group: Pieces, shared: Pieces) -> None:
    """Raise ValueError unless a group has one tensor of the same shape for every shared piece."""
    if unequal := sorted(set(group) ^ set(shared)):
        raise ValueError(f"{unequal[0]} is {'missing' if unequal[0] in shared else 'not a shared piece'}")
    for name, value in group.items():
        if value.shape != shared[name].shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; its piece has shape {tuple(shared[name].shape)}")


def shapes_of_shared(shared: Pieces, state: Pieces) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `like_shared` accepts."""
    return {name: tuple(value.shape) for name, value in shared.items()}


def _one_number(group: Pieces, shared: Pieces) -> None:
    if set(group) != {"value"} or group["value"].shape != ():
        raise ValueError(f"it contains {sorted(group)}; it should be one number 'value', a tensor without dimensions")
    value = group["value"]
    if not value.is_meta and not (bool(torch.isfinite(value)) and bool(value >= 0)):
        raise ValueError(f"its value is {float(value)}; it should be finite and not negative")


scalar = Extra(_one_number, lambda shared, state: {"value": ()})  # one number, finite and not negative
