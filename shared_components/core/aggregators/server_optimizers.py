"""Apply server optimizers to the mean of the updates: momentum (FedAvgM) and Adam (FedAdam).

The gradient is the difference between the model that the sites received and the mean of their updates. Integer buffers
follow the rule of the mean. The moments are float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import mean_pieces, weight_names
from shared_components.core.method import Aggregation, Models, Profile, State, Update
from shared_components.core.partition import Partition, Pieces


@dataclass(frozen=True)
class ServerMomentum:
    """FedAvgM (Hsu et al., arXiv 1909.06335): m = momentum * m + theta - mean, theta <- theta - learning_rate * m."""

    momentum: float
    learning_rate: float

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        return _zeros(models.shared, "momentum")

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        shared, after = mean_pieces(updates, models.shared), dict(state)
        for name in weight_names(models.shared):
            mean = shared[name].to(torch.float64)
            gradient = models.shared[name].to(torch.float64) - mean
            moment = after[f"momentum/{name}"] = self.momentum * state[f"momentum/{name}"] + gradient
            # theta - lr * m with theta = mean + g: without rounding if lr * m = g, which is FedAvg
            shared[name] = (mean + (gradient - self.learning_rate * moment)).to(shared[name].dtype)
        return Aggregation(after, Models(shared, models.mixed))


@dataclass(frozen=True)
class ServerAdam:
    """FedAdam: theta <- theta + learning_rate * m / (sqrt(v) + tau).

    With d = mean - theta, m and v are running means of d and d^2.
    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv 2003.00295), Algorithm 2, without bias
    correction of m and v. ``released`` corrects the bias like Flower: with the powers t + 1, t = 1 in the first round.
    """

    learning_rate: float
    beta_1: float
    beta_2: float
    tau: float
    released: bool = False

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        moments = _zeros(models.shared, "first") | _zeros(models.shared, "second")
        return {"steps": torch.tensor(0), **moments}

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        shared, after = mean_pieces(updates, models.shared), dict(state)
        after["steps"] = state["steps"] + 1
        rate = self._rate(int(after["steps"]))
        for name in weight_names(models.shared):
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
    return {f"{key}/{name}": torch.zeros_like(shared[name], dtype=torch.float64) for name in weight_names(shared)}
