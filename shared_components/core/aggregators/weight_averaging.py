"""Stochastic weight averaging over rounds, at the server (Caldarola et al., ECCV 2022; Izmailov et al., UAI 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared_components.core.aggregators.mean import WeightedMean, parameter_names
from shared_components.core.method import Aggregation, Models, Profile, State, Update
from shared_components.core.partition import Partition

MEAN, ROUNDS, COUNT = "average/", "rounds", "averaged"


@dataclass(frozen=True)
class AveragedMean:
    """FedAvg's mean, and from round ``start`` on, counted from 0, the running mean of every ``cycle``-th model.

    It is taken in float64; with a ``start`` of None no model is averaged. Training goes on from the model that is not
    averaged; `delivered` gives the averaged one for the end.
    """

    start: int | None = None
    cycle: int = 1

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the state before the first round."""
        return {} if self.start is None else {ROUNDS: torch.tensor(0), COUNT: torch.tensor(0)}

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Average the updates, and the rounds where it is time."""
        result = WeightedMean().apply(state, partition, models, updates)
        if self.start is None:
            return result
        round, count = int(state[ROUNDS]), int(state[COUNT])
        state = {**state, ROUNDS: torch.tensor(round + 1)}
        if round >= self.start and (round - self.start) % self.cycle == 0:
            for name, value in result.models.shared.items():
                # w_SWA <- (w_SWA n + w) / (n + 1), as a step from the old mean
                old = state.get(MEAN + name, torch.zeros_like(value, dtype=torch.float64))
                state[MEAN + name] = old + (value.to(torch.float64) - old) / (count + 1)
            state[COUNT] = torch.tensor(count + 1)
        return Aggregation(state, result.models, {"averaged_rounds": int(state[COUNT])})


def delivered(state: State, models: Models) -> Models:
    """Return the averaged model, or the last one where none has been averaged yet."""
    if not int(state.get(COUNT, torch.tensor(0))):
        return models
    averaged = {n: state[MEAN + n].to(models.shared[n].dtype) for n in parameter_names(models.shared)}
    shared = models.shared | averaged
    return Models(shared, models.mixed, models.broadcast)
