"""What the server makes of the mean of the updates: momentum (FedAvgM), Adam (FedAdam), and averages over rounds.

Stochastic weight averaging at the server: Caldarola et al., ECCV 2022; Izmailov et al., UAI 2018. The
optimizers take the difference between what the sites received and the mean of what they sent back as a gradient.
Integer buffers are no parameters and take the mean's rule. The moments are kept in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import WeightedMean, mean_pieces, parameter_names
from shared_components.core.method import Aggregation, Models, Profile, State, Update
from shared_components.core.partition import Partition, Pieces


@dataclass(frozen=True)
class ServerMomentum:
    """FedAvgM: g = theta - mean, m = momentum * m + g, theta <- theta - learning_rate * m.

    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
    arXiv 1909.06335. In the first round m is g.
    """

    momentum: float
    learning_rate: float

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the momentum zero of every parameter."""
        return _zeros(models.shared, "momentum")

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Take one step from the shared model towards the mean of the updates, and on."""
        shared, after = mean_pieces(updates, models.shared), dict(state)
        for name in parameter_names(models.shared):
            mean = shared[name].to(torch.float64)
            gradient = models.shared[name].to(torch.float64) - mean
            moment = after[f"momentum/{name}"] = self.momentum * state[f"momentum/{name}"] + gradient
            # theta - lr * m with theta = mean + g: no rounding is left where lr * m = g, which is FedAvg
            shared[name] = (mean + (gradient - self.learning_rate * moment)).to(shared[name].dtype)
        return Aggregation(after, Models(shared, models.mixed))


@dataclass(frozen=True)
class ServerAdam:
    """FedAdam: d = mean - theta, m and v its running means, theta <- theta + learning_rate * m / (sqrt(v) + tau).

    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv 2003.00295), Algorithm 2, which corrects no
    bias of m and v. ``released`` does, as Flower's does: with the powers t + 1, t = 1 in the first round.
    """

    learning_rate: float
    beta_1: float
    beta_2: float
    tau: float
    released: bool = False

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the moments zero of every parameter and the number of steps taken."""
        moments = _zeros(models.shared, "first") | _zeros(models.shared, "second")
        return {"steps": torch.tensor(0), **moments}

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Take one step from the shared model."""
        shared, after = mean_pieces(updates, models.shared), dict(state)
        after["steps"] = state["steps"] + 1
        rate = self._rate(int(after["steps"]))
        for name in parameter_names(models.shared):
            before = models.shared[name].to(torch.float64)
            change = shared[name].to(torch.float64) - before
            # Algorithm 2: m_t, v_t and the step
            first = self.beta_1 * state[f"first/{name}"] + (1 - self.beta_1) * change
            second = self.beta_2 * state[f"second/{name}"] + (1 - self.beta_2) * change.square()
            shared[name] = (before + rate * first / (second.sqrt() + self.tau)).to(shared[name].dtype)
            after |= {f"first/{name}": first, f"second/{name}": second}
        return Aggregation(after, Models(shared, models.mixed), {"server_rate": rate})

    def _rate(self, step: int) -> float:
        if not self.released:
            return self.learning_rate
        return self.learning_rate * (1 - self.beta_2 ** (step + 1)) ** 0.5 / (1 - self.beta_1 ** (step + 1))


def _zeros(shared: Pieces, key: str) -> dict[str, Tensor]:
    return {f"{key}/{name}": torch.zeros_like(shared[name], dtype=torch.float64) for name in parameter_names(shared)}


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
