"""Average the server's models over rounds, around any aggregator: stochastic weight averaging (SWA).

Izmailov et al., UAI 2018; at the server of a federation Caldarola et al., ECCV 2022, whose Algorithm 1 FL-EndoViT
adapts. Training goes on from the model that is not averaged; the mean is delivered, and so scored, at the end. It is
taken in float64. Rounds are counted from 0, so that round t makes theta^(t+1) of theta^t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor

from shared_components.common.schema import Schema, parse
from shared_components.core.aggregators.mean import parameter_names
from shared_components.core.method import Aggregation, Aggregator, Method, Models, Profile, State, Update
from shared_components.core.partition import Partition, Pieces
from shared_components.core.training_settings import MOST_ROUNDS

MEAN, ROUNDS, COUNT = "average/", "rounds", "averaged"
Reading = Literal["mean", "paper", "as_released"]


class Averaging(Schema, frozen=True):
    """The argument `swa` of a method.

    Attributes:
        start: The first round that may be averaged, from 0; the papers begin at three quarters of the rounds.
        cycle: c, rounds from one averaged model to the next.
        reading: ``mean``: the models of rounds start, start + c and so on weigh the same. ``paper``: Algorithm 1 to the
            letter: of rounds t that c divides, each as one model beside t / c earlier ones, for which theta^(start - 1)
            stands. ``as_released``: the ends of cycles, start + c - 1 and so on, weigh the same.
        rate: From ``start`` on the learning rates cycle between the job's and this multiple of it, see `cycled`,
            whatever its schedule; null: they go on by the schedule.
    """

    start: Annotated[int, Meta(ge=0, le=MOST_ROUNDS)]
    cycle: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 1
    reading: Reading = "mean"
    rate: Annotated[float, Meta(ge=0, le=1)] | None = None

    def averages(self, round: int) -> bool:
        """Return whether the model that a round makes is averaged."""
        first = {"mean": self.start, "paper": 0, "as_released": self.start - 1}[self.reading]
        return round >= self.start and (round - first) % self.cycle == 0

    @property
    def first(self) -> int:
        """The first round whose model is averaged."""
        return next(round for round in range(self.start, self.start + self.cycle) if self.averages(round))

    def rates(self, round: int) -> float | None:
        """Return the multiple of the job's learning rates in a round; None where its schedule holds."""
        return None if self.rate is None or round < self.start else cycled(round, self.cycle, self.rate)


def cycled(round: int, cycle: int, least: float) -> float:
    """Return gamma(t) / gamma_1: it falls in a line over each cycle, to gamma_2 / gamma_1 in its last round.

    Caldarola et al., after Izmailov et al.: gamma(t) = (1 - s) gamma_1 + s gamma_2 with s = (t mod c + 1) / c.
    """
    share = (round % cycle + 1) / cycle
    return (1 - share) + share * least


@dataclass(frozen=True)
class Averaged:
    """An aggregator and the mean of its models over rounds; `delivered` gives the mean for the end."""

    inner: Aggregator
    swa: Averaging

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the state before the first round."""
        return {**self.inner.init(partition, models, profiles), ROUNDS: torch.tensor(0), COUNT: torch.tensor(0)}

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Let the aggregator combine the updates, and average its model where it is time.

        The means in ``state`` move on in place: in float64 a second copy would take two models' memory.
        """
        own = {name for name in state if name in (ROUNDS, COUNT) or name.startswith(MEAN)}
        theirs = {name: value for name, value in state.items() if name not in own}
        result = self.inner.apply(theirs, partition, models, updates)
        round, count = int(state[ROUNDS]), int(state[COUNT])
        means = {name: state[name] for name in own if name.startswith(MEAN)}
        if self.swa.reading == "paper" and round == self.swa.start - 1:
            means = {MEAN + name: value.to(torch.float64) for name, value in _parameters(models.shared)}
        elif self.swa.averages(round):
            models_before = round // self.swa.cycle if self.swa.reading == "paper" else count
            means = {
                MEAN + name: _running(means.get(MEAN + name), value, models_before)
                for name, value in _parameters(result.models.shared)
            }
            count += 1
        counted = {ROUNDS: torch.tensor(round + 1), COUNT: torch.tensor(count)}
        return replace(
            result, state={**result.state, **counted, **means}, report={**result.report, "averaged_rounds": count}
        )


def _parameters(shared: Pieces) -> list[tuple[str, Tensor]]:
    return [(name, shared[name]) for name in parameter_names(shared)]


def _running(old: Tensor | None, value: Tensor, count: int) -> Tensor:
    """Return theta_SWA <- (theta_SWA n + theta) / (n + 1), as a step from the old mean."""
    mean = torch.zeros_like(value, dtype=torch.float64) if old is None else old
    return mean.add_((value.to(torch.float64) - mean).div_(count + 1))


def delivered(state: State, models: Models) -> Models:
    """Return the averaged model, or the last one where none has been averaged yet."""
    if not int(state.get(COUNT, torch.tensor(0))):
        return models
    averaged = {n: state[MEAN + n].to(models.shared[n].dtype) for n in parameter_names(models.shared)}
    shared = models.shared | averaged
    return Models(shared, models.mixed, models.broadcast)


def averaged(method: Method, swa: Mapping[str, Any] | None) -> Method:
    """Return a method whose models are also averaged over rounds; itself where ``swa`` is None.

    Raises:
        ValueError: A setting is unknown, missing or out of its range.
    """
    if swa is None:
        return method
    chosen = parse(Averaging, swa, method.name, key="swa.{}")
    server = replace(method.server, aggregator=Averaged(method.server.aggregator, chosen), finish=delivered)
    return replace(
        method,
        server=server,
        local=replace(method.local, rates=chosen.rates),
        requires=replace(method.requires, min_rounds=max(method.requires.min_rounds, chosen.first + 1)),
        about=replace(method.about, aggregator=f"{method.about.aggregator}; averaged over the last rounds (SWA)"),
    )
