"""Define federated methods: a partition rule, a local objective and a server aggregator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shared_components.core.exchange import (  # noqa: F401  methods import these names from here
    Aggregation,
    Aggregator,
    Extra,
    Extras,
    Models,
    Profile,
    State,
    StatelessStart,
    Update,
    site_order,
)
from shared_components.core.partition import Partition, Pieces, Role, Rule
from shared_components.core.task import Batch, Task, build_by_name, module_names


@dataclass
class Context:
    """Inputs of an objective in addition to the batch."""

    round: int
    task: Task
    generator: torch.Generator  # the site's own random stream, on the CPU
    site: int = 0  # index of this site, also in every list of items
    sites: int = 1
    items: Mapping[str, list] = field(default_factory=dict)  # profile items of all sites; None: not published
    received: Pieces = field(default_factory=dict)  # pieces at the start of the round
    broadcast: Mapping[str, Pieces] = field(default_factory=dict)
    memory: State = field(default_factory=dict)  # the method's tensors at this site; never sent
    iteration: int = 0  # index of the local step
    iterations: int = 1  # number of local steps in this round
    precision: str = "float32"  # precision of the forward pass and losses, see `training_settings.Training`
    pace: Callable[[float], float] | None = None  # factor of the learning rates by position in the round, 0 to 1
    accumulate: int = 1  # number of batches per optimizer step
    gathered: State = field(default_factory=dict)  # gradient sums of batches before the next optimizer step, by name
    eager: str = ""  # reason not to record steps as CUDA graphs; empty: they may be recorded
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # see `once`

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned for this name in the round's first step; CUDA graphs need the same tensors."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def received_on(self, device: torch.device) -> Pieces:
        """Return the received pieces on a device; they are copied there once per round."""
        return self.once("received", lambda: {name: value.to(device) for name, value in self.received.items()})


@dataclass(frozen=True, eq=False)  # compared by identity, because tensors do not compare
class GraphCut:
    """Cut of the autograd graph at a tensor, so that several terms share the backward pass upstream of it."""

    upstream: Tensor
    twin: Tensor  # detached copy of ``upstream``, from which the terms are computed

    @classmethod
    def cut(cls, tensor: Tensor) -> GraphCut:
        return cls(tensor, tensor.detach().requires_grad_())


@dataclass(frozen=True)
class Term:
    """One term of the local loss, with its target parameters and its graph cuts."""

    name: str
    value: Tensor
    role: Role | None = None  # role of the trained slices; None: any role
    cuts: tuple[GraphCut, ...] = ()
    parts: tuple[str, ...] = ()  # parts of the network that are trained; empty: all


@dataclass(frozen=True)
class SiteFacts:
    """Facts about a site for conditioning its network."""

    text: str  # description in site.yaml; may be empty
    site: int = 0  # index of the site
    sites: int = 1  # number of sites, including a held-out site in evaluation
    vectors: Path | None = None  # the site's file of text vectors
    encoder: Path | None = None  # folder of the site's text encoder
    dataset: str = ""
    task: str = ""  # kind of task; empty: the bundle's first task
    classes: tuple[str, ...] = ()  # class names, background first


class LocalWork(Protocol):
    """Interface for a method's local update; ``network`` contains the received and the LOCAL pieces."""

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
        """Run the plain training loop and return the mean of each loss term.

        By default, train the site's network with the method's objective for the round's iterations. The optimizer with
        this ``key`` keeps its state. Another network needs its own ``partition`` if its architecture or roles differ.
        ``rate`` is a factor of the job's learning rates.
        """

    def batches(self, iterations: int) -> Iterator[Batch]:
        """Yield augmented training batches on the network's device."""

    def frames(self, count: int | None = None) -> Iterator[Batch]:
        """Yield unaugmented training frames in batches, each frame once; all frames by default."""

    def validate(self, network: nn.Module) -> float | None:
        """Return the task's first metric on validation; NaN if nothing could be scored, None without frames."""


Losses = dict[str, float]
Objective = Callable[[nn.Module, Batch, Context], Sequence[Term]]
Measure = Callable[[nn.Module, Iterable[Batch], Context, Partition], Extras]
RandomInputs = Callable[[int, Context, torch.Generator], Mapping[str, Tensor]]
Gradients = Callable[[nn.Module, Callable[[], Losses], Context], Losses]
LocalUpdate = Callable[[LocalWork], Losses]
Deploy = Callable[[State, State], State]
Finish = Callable[[State, Models], Models]
ServerUpdate = Callable[[LocalWork, Aggregation], tuple[Aggregation, Losses]]
ServerCheck = Callable[[nn.Module, Batch, Context], None]
ConditionOnSite = Callable[[nn.Module, SiteFacts], str]
DescribeSite = Callable[[SiteFacts], Any]  # returns plain values
HeldOutModel = Callable[[Sequence[State], Sequence[int]], State]  # (whole models, samples) -> one model


def task_objective(network: nn.Module, batch: Batch, context: Context) -> list[Term]:
    """Return only the task's loss, named after the kind of task; it trains all parameters."""
    return [task_term(network, batch, context)]


def task_term(network: nn.Module, batch: Batch, context: Context, role: Role | None = None) -> Term:
    """Return the task's loss as a term that trains one role, or all parameters."""
    task = context.task
    return Term(task.card.kind, task.loss(task.predict(network, batch), batch), role)


@dataclass(frozen=True)
class Local:
    """Site side of a method. The functions' signatures are declared above.

    Attributes:
        objective: Objective of local training; the task's loss by default. Another objective declares ``recordable``
            if a CUDA graph can record it: it reads no value of a tensor, and nothing of the context that changes
            within a round.
        update: Replacement for the plain loop of local iterations.
        random_inputs: Draws random inputs of the objective for a batch of a size, which are added to the batch. An
            objective that draws from the context's generator itself keeps batches from being made ahead.
        gradients: Called in every step with ``backward``, which sets ``.grad`` of all parameters and returns the loss
            terms. None calls it once.
        measure: Computes the extras after the local iterations.
        measure_images: Number of unaugmented training frames for ``measure`` per round; None: each frame once.
        extras: Declarations of the groups that ``measure`` returns, checked by site and server.
        items: Functions that compute profile items from the facts about the site, by name.
        condition_on_site: Sets untrained inputs of the network after weights are loaded; may change only LOCAL pieces.
            Returns the name of the inputs' encoder, which must be the same at all sites unless it is empty.
        rates: Returns a factor of the job's learning rates in a round (from 0) in place of the schedule, or None.
        deploy: Returns the state to validate and save, given the network's state and the memory; None: the network's.
    """

    objective: Objective = task_objective
    update: LocalUpdate | None = None
    random_inputs: RandomInputs | None = None
    gradients: Gradients | None = None
    measure: Measure | None = None
    measure_images: int | None = 0
    extras: Mapping[str, Extra] = field(default_factory=dict)
    items: Mapping[str, DescribeSite] = field(default_factory=dict)
    condition_on_site: ConditionOnSite | None = None
    rates: Callable[[int], float | None] = lambda round: None
    deploy: Deploy | None = None


@dataclass(frozen=True)
class Server:
    """Server side of a method. The functions' signatures are declared above.

    Attributes:
        aggregator: Aggregator of the updates of a round.
        update: Trains at the server after every aggregation; returns the changed aggregation and losses for the record.
            It may change GLOBAL pieces, and keeps optimizers and memory like a site.
        check: Called at enrolment with a batch of the server's data; raises ValueError if ``update`` would fail later.
        finish: Changes the models before the final delivery, given the aggregator's state.
        held_out_model: Combines models of consenting sites with the same task into a model for held-out sites. None:
            the mean weighted by samples.
        weighted_sum_only: Whether the aggregator needs only the sum of GLOBAL pieces weighted by samples and the sum of
            samples, so that secure sums work.
        trained: Prefixes of names in the aggregator's state that are the aggregator's own weights.
    """

    aggregator: Aggregator
    update: ServerUpdate | None = None
    check: ServerCheck | None = None
    finish: Finish | None = None
    held_out_model: HeldOutModel | None = None
    weighted_sum_only: bool = False
    trained: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requires:
    """Requirements of a method."""

    kinds: tuple[str, ...] | None = None  # supported kinds of task; None: any
    network: type | None = None  # protocol such as `protocols.TwoPaths`; None: any network
    items: frozenset[str] = frozenset()  # required profile items (`data.profile_items`)
    optional_items: frozenset[str] = frozenset()  # profile items that a site may refuse
    min_sites: int = 1  # minimum number of sites at enrolment
    min_rounds: int = 1  # minimum number of rounds of a job, for methods with stages
    pooled: bool = False  # the first site trains on the frames of all sites, in a simulation
    multi_task: bool = False  # sites may differ in task and classes; each starts from its own MIXED pieces


@dataclass(frozen=True)
class About:
    """Description of a method: its paper, and its row in the table of methods, in short Markdown."""

    label: str = ""  # as papers write it
    paper: str = ""  # authors, venue, identifier
    idea: str = ""  # one plain sentence for readers without the paper
    partition: str = "all GLOBAL"
    objective: str = "task loss"
    aggregator: str = ""
    secure_sums: str = ""  # "yes" or "no", a colon, and the reason


@dataclass(frozen=True)
class Method:
    """A federated method: a partition, a local objective and a server aggregator; the rest is optional."""

    name: str = field(default="", kw_only=True)  # set by `load_method`: the file in ``shared_components/methods``
    partition: Rule  # roles of all slices; may refuse a network
    server: Server
    local: Local = Local()
    requires: Requires = Requires()
    about: About = About()


def method_names() -> list[str]:
    """List the methods."""
    return module_names("methods")


def load_method(name: str, **arguments: Any) -> Method:
    """Build a method of ``shared_components/methods``; ValueError if the name or an argument does not exist."""
    return replace(build_by_name("methods", name, **arguments), name=name)
