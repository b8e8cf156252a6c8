"""Average the server's models over rounds with any aggregator: stochastic weight averaging (SWA).

Izmailov et al., UAI 2018; at the server of a federation Caldarola et al., ECCV 2022, whose Algorithm 1 FL-EndoViT
adapts. Training continues from the current model. The averaged model, in float64, is delivered and scored at the end.
Rounds count from 0: round t computes theta^(t+1) from theta^t.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor

from shared_components.common.schema import Schema, parse
from shared_components.core.aggregators.mean import parameter_names
from shared_components.core.method import Aggregation, Aggregator, Method, Models, Profile, State, Update
from shared_components.core.partition import Partition
from shared_components.core.training_settings import MOST_ROUNDS

MEAN, ROUNDS, COUNT = "average/", "rounds", "averaged"

SwaSettings = Mapping[str, Any] | None  # settings of `Averaging`, or None: no averaging


class Averaging(Schema, frozen=True):
    """Settings of a method's argument `swa`.

    Averaging by ``mean`` gives equal weights to rounds start, start + c, and so on. ``as_released`` gives equal weights
    to the ends of cycles, start + c - 1, and so on. ``paper`` is Algorithm 1 literally: a running mean over rounds t
    that c divides, with t / c earlier models, initialised with theta^(start - 1).
    """

    start: Annotated[int, Meta(ge=0, le=MOST_ROUNDS)]  # first round to average, from 0
    cycle: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 1  # number c of rounds between averaged models
    reading: Literal["mean", "paper", "as_released"] = "mean"
    rate: Annotated[float, Meta(ge=0, le=1)] | None = None  # see `cycled`; None: the job's schedule

    def averages(self, round: int) -> bool:
        first = {"mean": self.start, "paper": 0, "as_released": self.start - 1}[self.reading]
        return round >= self.start and (round - first) % self.cycle == 0

    @property
    def first(self) -> int:
        """First round with an averaged model."""
        return next(round for round in range(self.start, self.start + self.cycle) if self.averages(round))

    def rates(self, round: int) -> float | None:
        """Return the factor of the job's learning rates in a round, or None to use the job's schedule."""
        return None if self.rate is None or round < self.start else cycled(round, self.cycle, self.rate)


def cycled(round: int, cycle: int, least: float) -> float:
    """Return gamma(t) / gamma_1, which falls linearly over each cycle, to gamma_2 / gamma_1 in its last round.

    Caldarola et al., after Izmailov et al.: gamma(t) = (1 - s) gamma_1 + s gamma_2 with s = (t mod c + 1) / c.
    """
    share = (round % cycle + 1) / cycle
    return (1 - share) + share * least


@dataclass(frozen=True)
class Averaged:
    """An aggregator with the mean of its models over rounds; `delivered` returns the mean at the end."""

    inner: Aggregator
    swa: Averaging

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        return {**self.inner.init(partition, models, profiles), ROUNDS: torch.tensor(0), COUNT: torch.tensor(0)}

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Let the aggregator combine the updates, and add its model to the mean in rounds that are averaged.

        The means in ``state`` are updated in place, because a second float64 copy needs the memory of two models.
        """
        own = {name for name in state if name in (ROUNDS, COUNT) or name.startswith(MEAN)}
        theirs = {name: value for name, value in state.items() if name not in own}
        result = self.inner.apply(theirs, partition, models, updates)
        round, count = int(state[ROUNDS]), int(state[COUNT])
        means = {name: state[name] for name in own if name.startswith(MEAN)}
        if self.swa.reading == "paper" and round == self.swa.start - 1:
            means = {MEAN + n: models.shared[n].to(torch.float64) for n in parameter_names(models.shared)}
        elif self.swa.averages(round):
            models_before = round // self.swa.cycle if self.swa.reading == "paper" else count
            means = {
                MEAN + name: _running(means.get(MEAN + name), result.models.shared[name], models_before)
                for name in parameter_names(result.models.shared)
            }
            count += 1
        counted = {ROUNDS: torch.tensor(round + 1), COUNT: torch.tensor(count)}
        report = {**result.report, "averaged_rounds": count}
        return replace(result, state={**result.state, **counted, **means}, report=report)


def _running(old: Tensor | None, value: Tensor, count: int) -> Tensor:
    """Return (theta_SWA n + theta) / (n + 1), computed as a step from the old mean."""
    mean = torch.zeros_like(value, dtype=torch.float64) if old is None else old
    return mean.add_((value.to(torch.float64) - mean).div_(count + 1))


def delivered(state: State, models: Models) -> Models:
    """Return the averaged model, or the last model if none has been averaged."""
    if not int(state.get(COUNT, torch.tensor(0))):
        return models
    averaged = {n: state[MEAN + n].to(models.shared[n].dtype) for n in parameter_names(models.shared)}
    return replace(models, shared=models.shared | averaged)


def averaged(method: Method, swa: SwaSettings, name: str) -> Method:
    """Return a method with averaging over rounds, or unchanged without ``swa``; ValueError for a wrong setting."""
    if swa is None:
        return method
    chosen = parse(Averaging, swa, name, key="swa.{}")
    return replace(
        method,
        server=replace(method.server, aggregator=Averaged(method.server.aggregator, chosen), finish=delivered),
        local=replace(method.local, rates=chosen.rates),
        requires=replace(method.requires, min_rounds=max(method.requires.min_rounds, chosen.first + 1)),
        about=replace(method.about, aggregator=f"{method.about.aggregator}; averaged over the last rounds (SWA)"),
    )
