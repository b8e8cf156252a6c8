"""What a federated method is: a partition rule, a local objective and a server aggregator."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shared_components.core.card import Card
from shared_components.core.partition import Extra, Partition, Pieces, Role, Rule
from shared_components.core.task import Batch, Task

State = dict[str, Tensor]
Extras = dict[str, Pieces]


@dataclass(frozen=True)
class Profile:
    """A site's description of itself, sent once, at enrolment."""

    site: str
    samples: int  # for training
    card: Card
    items: Mapping[str, Any] = field(default_factory=dict)  # what it publishes, by name
    fixed: str = ""  # hash of the weights that are not trained
    prepared: str = ""  # the encoder of its network's untrained inputs, see `Local.condition_on_site`
    start: Mapping[str, str] = field(default_factory=lambda: {"start": "random", "sha256": ""})


@dataclass(frozen=True)
class Update:
    """What a site sends back after its local iterations of one round."""

    site: str
    round: int
    pieces: Mapping[str, Tensor]  # GLOBAL and MIXED
    extras: Extras = field(default_factory=dict)  # e.g. {"sensitivity": {piece name: tensor}}
    samples: int = 1


@dataclass(frozen=True)
class Models:
    """What the sites start a round from: GLOBAL pieces once, MIXED pieces per site.

    ``broadcast`` holds further groups of tensors that every site receives (FedSeg's prototypes).
    """

    shared: Pieces
    mixed: Mapping[str, Pieces]
    broadcast: Mapping[str, Pieces] = field(default_factory=dict)

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

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Combine the updates (one or more sites, in any order) of a round that started from ``models``."""
        ...


class StatelessStart:
    """The ``init`` of an aggregator that begins with nothing."""

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the empty state."""
        return {}


@dataclass
class Context:
    """What an objective may use besides the batch."""

    round: int
    task: Task
    generator: torch.Generator  # the site's own random stream, on the CPU
    site: int = 0  # number of this site, and its place in every list of items
    sites: int = 1
    items: Mapping[str, list] = field(default_factory=dict)  # profile items of all sites; None: not published
    received: Pieces = field(default_factory=dict)  # pieces the round began with
    broadcast: Mapping[str, Pieces] = field(default_factory=dict)
    memory: State = field(default_factory=dict)  # what the method keeps at this site; never sent
    iteration: int = 0  # the local step, counted by the local loop
    iterations: int = 1  # local steps of this round
    precision: str = "float32"  # of a local step's forward pass and losses, see `training_settings.Training`
    pace: Callable[[float], float] | None = None  # multiple of the learning rates at a place of the round, from 0 to 1
    accumulate: int = 1  # batches of an optimizer step
    gathered: State = field(default_factory=dict)  # sums of the gradients of batches whose step is to come, by name


@dataclass(frozen=True, eq=False)  # a cut is itself: tensors do not compare
class GraphCut:
    """A tensor at which an objective has cut the graph, so that its terms share the backward pass upstream of it.

    ``twin`` is ``upstream`` detached; the terms are computed from the twin.
    """

    upstream: Tensor
    twin: Tensor

    @classmethod
    def cut(cls, tensor: Tensor) -> GraphCut:
        """Cut the graph at a tensor."""
        return cls(tensor, tensor.detach().requires_grad_())


@dataclass(frozen=True)
class Term:
    """One term of the local loss, what it reaches and the graph cuts it crosses.

    It reaches the slices of its role (``None``: of every role) in its parts (none named: in the whole network).
    """

    name: str
    value: Tensor
    role: Role | None = None
    cuts: tuple[GraphCut, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteFacts:
    """What a site's network may be conditioned on."""

    text: str  # the description in its site.yaml; empty where it has none
    site: int = 0  # its number
    sites: int = 1  # how many there are, an outsider that is scored included
    vectors: Path | None = None  # the site's own file of text vectors
    encoder: Path | None = None  # the folder of its own text encoder
    dataset: str = ""
    task: str = ""  # its kind; empty: the first one of the bundle
    classes: tuple[str, ...] = ()  # of its labels, background first


class LocalWork(Protocol):
    """What a method's own local update works with; ``network`` holds the received and the LOCAL pieces."""

    network: nn.Module
    partition: Partition
    context: Context

    def train(
        self,
        objective: Objective | None = None,
        *,
        network: nn.Module | None = None,
        iterations: int | None = None,
        key: str = "",
        partition: Partition | None = None,
        rate: float = 1.0,
    ) -> Losses:
        """Run the plain loop and return the mean of each loss term.

        Args:
            objective: Instead of the method's.
            network: Instead of the site's; of the same build, unless it comes with a partition of its own.
            iterations: Instead of the round's.
            key: Of the optimizer; the state of each is kept from round to round.
            partition: Of the network, where its parameters or roles are not those of the site's.
            rate: Multiple of the job's learning rates for this call.
        """
        ...

    def batches(self, iterations: int) -> Iterator[Batch]:
        """Yield augmented training batches on the network's device."""
        ...

    def frames(self, count: int | None = None) -> Iterator[Batch]:
        """Yield training frames in batches, unaugmented, each frame once; all of them by default."""
        ...

    def validate(self, network: nn.Module) -> float | None:
        """Return the task's first metric on the validation frames; NaN: nothing to score, None: there are none."""
        ...


Losses = dict[str, float]
Objective = Callable[[nn.Module, Batch, Context], Sequence[Term]]
Measure = Callable[[nn.Module, Iterable[Batch], Context, Partition], Extras]
Gradients = Callable[[nn.Module, Callable[[], Losses], Context], Losses]
LocalUpdate = Callable[[LocalWork], Losses]
Deploy = Callable[[State, State], State]
Finish = Callable[[State, Models], Models]
ServerUpdate = Callable[[LocalWork, Aggregation], tuple[Aggregation, Losses]]
ServerCheck = Callable[[nn.Module, Batch, Context], None]
ConditionOnSite = Callable[[nn.Module, SiteFacts], str]
DescribeSite = Callable[[SiteFacts], Any]  # returns plain values
Outsider = Callable[[Sequence[State], Sequence[int]], State]  # (whole models, samples) -> one model


def scheduled_rates(round: int) -> None:
    """Leave a round's learning rates to the job's schedule."""


def task_objective(network: nn.Module, batch: Batch, context: Context) -> list[Term]:
    """Return the task's loss alone, named after its kind; it reaches every parameter."""
    return [task_term(network, batch, context)]


def task_term(network: nn.Module, batch: Batch, context: Context, role: Role | None = None) -> Term:
    """Return the task's loss as a term that reaches one role, or every parameter."""
    task = context.task
    return Term(task.card.kind, task.loss(task.predict(network, batch), batch), role)


@dataclass(frozen=True)
class Local:
    """What a method does at a site.

    Attributes:
        objective: What a site minimises; by default the task's loss.
        update: Called instead of the plain loop of local iterations.
        gradients: Called in every step with (network, backward, context); ``backward()`` sets every
            parameter's ``.grad`` and returns the loss terms. None: one such call.
        measure: What a site measures after its local iterations, sent as extras.
        measure_images: Unaugmented training frames that ``measure`` sees per round; 0: none, None: each once.
        extras: Groups that ``measure`` returns, by which site and server check each, with their shapes.
        items: Profile items that the method computes itself of what is known of the site, by name.
        condition_on_site: Called with (network, what is known of the site) whenever the network holds the weights
            that it works with; gives the network untrained inputs, and may change LOCAL pieces alone. Returns a
            short name of the encoder that made them, equal at all sites; empty: nothing compares.
        rates: Called with a round, from 0; returns the multiple of the job's learning rates that replaces its schedule
            in this round, or None.
        deploy: Called with (state of the network, memory); returns the state that is validated and saved as the
            site's model. None: the network's own.
    """

    objective: Objective = task_objective
    update: LocalUpdate | None = None
    gradients: Gradients | None = None
    measure: Measure | None = None
    measure_images: int | None = 0
    extras: Mapping[str, Extra] = field(default_factory=dict)
    items: Mapping[str, DescribeSite] = field(default_factory=dict)
    condition_on_site: ConditionOnSite | None = None
    rates: Callable[[int], float | None] = scheduled_rates
    deploy: Deploy | None = None


@dataclass(frozen=True)
class Server:
    """What a method does at the server.

    Attributes:
        aggregator: Combines the updates of a round.
        update: Called after every aggregation with (the server's own local work, the aggregation), on data of the
            server's own; returns the aggregation that counts and losses for the record. It may change GLOBAL pieces,
            and keeps optimizers and memory from round to round as sites do.
        check: Called at enrolment with (the server's network, a batch of its data, the context with its memory);
            raises ValueError where ``update`` would fail after the sites' first round.
        finish: Called with (the aggregator's state, models) before the last delivery.
        outsider: Combines whole models of consenting sites of one task to the outsider's. None: their mean,
            weighted by samples.
        weighted_sum_only: The aggregator reads nothing of the updates but the sum of their GLOBAL pieces weighted by
            samples, and the samples' sum: secure sums will do.
        trained: Prefixes of the names in the aggregator's state that are weights of its own.
    """

    aggregator: Aggregator
    update: ServerUpdate | None = None
    check: ServerCheck | None = None
    finish: Finish | None = None
    outsider: Outsider | None = None
    weighted_sum_only: bool = False
    trained: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requires:
    """What a method needs.

    Attributes:
        kinds: Of task that the method is for; None: any.
        network: Protocol that the network must satisfy, such as `protocols.TwoPaths`; None: any network will do.
        items: Profile items without which a site cannot take part (`data.profile_items`).
        optional_items: Profile items that a site may refuse.
        min_sites: Fewer sites than this are refused at enrolment.
        min_rounds: Jobs of fewer rounds are refused: what the arguments name would never come.
        pooled: The first site trains on all sites' frames, which only a simulation can.
        multi_task: Sites may differ in task and class map; each starts from its own MIXED pieces.
    """

    kinds: tuple[str, ...] | None = None
    network: type | None = None
    items: frozenset[str] = frozenset()
    optional_items: frozenset[str] = frozenset()
    min_sites: int = 1
    min_rounds: int = 1
    pooled: bool = False
    multi_task: bool = False


@dataclass(frozen=True)
class About:
    """A method's description: its paper, and its row in the table of methods, in short Markdown."""

    label: str = ""  # as papers write it
    paper: str = ""  # authors, venue, identifier
    idea: str = ""  # what it does, in one plain sentence for readers without the paper
    partition: str = "all GLOBAL"
    objective: str = "task loss"
    aggregator: str = ""
    secure_sums: str = ""  # "yes" or "no", a colon, and why


@dataclass(frozen=True)
class Method:
    """A federated method: a partition x a local objective x a server aggregator; the rest is optional."""

    name: str  # its file in ``shared_components/methods``
    partition: Rule  # which slices are GLOBAL, MIXED and LOCAL; may refuse a network
    server: Server
    local: Local = Local()
    requires: Requires = Requires()
    about: About = About()


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
