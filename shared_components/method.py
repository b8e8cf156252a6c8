"""What a federated method is: a partition rule, a local objective and a server aggregator."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shared_components.partition import Partition, Pieces, Role, Rule

State = dict[str, Tensor]
Batch = Mapping[str, Tensor]
Extras = dict[str, Pieces]


@dataclass(frozen=True)
class Profile:
    """What a site says of itself once, at enrolment."""

    site: str
    samples: int  # training frames
    classes: tuple[str, ...]  # class map, background included
    style: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # channel means and deviations in [0, 1]
    text: str = ""


@dataclass(frozen=True)
class Update:
    """What a site sends back after its local iterations of one round."""

    site: str
    round: int
    pieces: Pieces  # GLOBAL and MIXED
    extras: Extras = field(default_factory=dict)  # e.g. {"sensitivity": {piece name: tensor}}
    samples: int = 1


@dataclass(frozen=True)
class Models:
    """What the sites start a round from: GLOBAL pieces once, MIXED pieces per site."""

    shared: Pieces
    mixed: Mapping[str, Pieces]

    def of(self, site: str) -> Pieces:
        """Return everything one site receives."""
        return {**self.shared, **self.mixed.get(site, {})}


@dataclass(frozen=True)
class Aggregation:
    """The outcome of one server step: state to keep, models to send, numbers for the record."""

    state: State
    models: Models
    report: dict[str, Any] = field(default_factory=dict)


class Aggregator(Protocol):
    """The server's side: two pure functions; sums run in sorted site order, never in arrival order."""

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the state before the first round."""
        ...

    def apply(
        self, state: State, partition: Partition, models: Models, updates: Sequence[Update]
    ) -> Aggregation:
        """Combine the updates (one or more sites, in any order) of a round that started from ``models``."""
        ...


@dataclass
class Context:
    """What an objective may know besides the batch."""

    round: int
    segmentation: Callable[[Tensor, Tensor], Tensor]  # (logits, label) -> loss
    generator: torch.Generator  # the site's own random stream, on the CPU
    site: int = 0  # row of this site in the style memory
    styles: tuple[Tensor, Tensor] | None = None  # means (K, 3) and deviations (K, 3) of all sites
    received: Pieces = field(default_factory=dict)


@dataclass(frozen=True, eq=False)  # a seam is itself: tensors do not compare
class Seam:
    """Where an objective has cut the graph in two, so that terms can share the way behind it.

    ``twin`` is ``upstream`` detached; the terms are computed from the twin.
    """

    upstream: Tensor
    twin: Tensor

    @classmethod
    def cut(cls, tensor: Tensor) -> Seam:
        """Cut the graph at a tensor."""
        return cls(tensor, tensor.detach().requires_grad_())


@dataclass(frozen=True)
class Term:
    """One term of the local loss, the role it reaches (``None``: every parameter) and the seams it crosses."""

    name: str
    value: Tensor
    role: Role | None = None
    seams: tuple[Seam, ...] = ()


Objective = Callable[[nn.Module, Batch, Context], Sequence[Term]]
CheckExtra = Callable[[Pieces, Pieces], None]  # (the group's tensors, the shared pieces); raises ValueError
Measure = Callable[[nn.Module, Iterable[Batch], Context, Partition], Extras]


@dataclass(frozen=True)
class Method:
    """A federated method. ``shares`` names the optional profile items it asks every site to publish."""

    name: str
    rule: Rule
    objective: Objective
    aggregator: Aggregator
    measure: Measure | None = None
    measure_images: int = 0  # unaugmented training frames that `measure` sees per round
    extras: Mapping[str, CheckExtra] = field(
        default_factory=dict
    )  # groups `measure` returns, and their checks
    shares: frozenset[str] = frozenset()
    paper: str = ""


def like_shared(group: Pieces, shared: Pieces) -> None:
    """Accept a group that has one tensor of the same shape for every shared piece.

    Raises:
        ValueError: A name is missing or undeclared, or a shape differs; both say the first such name.
    """
    if odd := sorted(set(group) ^ set(shared)):
        raise ValueError(f"{odd[0]} is {'missing' if odd[0] in shared else 'no shared piece'}")
    for name, value in group.items():
        if value.shape != shared[name].shape:
            raise ValueError(f"{name} is {tuple(value.shape)}; its piece is {tuple(shared[name].shape)}")


def method_names() -> list[str]:
    """List the methods by listing the folder; adding a file there is all that a new method needs."""
    import shared_components.methods as folder

    return sorted(module.name for module in pkgutil.iter_modules(folder.__path__))


def load_method(name: str, **arguments: Any) -> Method:
    """Build a method by name.

    Args:
        name: A file of ``shared_components/methods``.
        **arguments: Keyword arguments of that file's ``build``.

    Raises:
        ValueError: There is no such method, or it has no such argument.
    """
    if name not in method_names():
        raise ValueError(f"method {name!r} does not exist; there are {', '.join(method_names())}")
    build = importlib.import_module(f"shared_components.methods.{name}").build
    try:
        return build(**arguments)
    except TypeError as error:
        raise ValueError(f"method {name!r}: {error}") from error


def site_order(names: Iterable[str]) -> list[str]:
    """Sort site names so that ``site-2`` comes before ``site-10``: the order of all sums and of all seeds."""
    return sorted(names, key=lambda n: [int(p) if p.isdigit() else p for p in _split_digits(n)])


def _split_digits(name: str) -> list[str]:
    parts: list[str] = [""]  # text and digits alternate, so that the keys of two names stay comparable
    for character in name:
        if character.isdigit() != (len(parts) % 2 == 0):
            parts.append("")
        parts[-1] += character
    return parts
