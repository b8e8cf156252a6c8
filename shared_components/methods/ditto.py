"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1."""

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.exchange import State
from shared_components.core.method import About, Context, Local, LocalWork, Losses, Method, Server, Term, task_objective
from shared_components.core.objectives import squared_distance
from shared_components.core.partition import Role, below, everything, paste, prefixed
from shared_components.core.ranges import FromZero
from shared_components.core.task import Batch

PERSONAL = "personal/"


def build(*, strength: FromZero = 0.1) -> Method:
    """Return Ditto: FedAvg's shared model, and a personal model at each site that stays close to it.

    ``strength`` is lambda, the weight of the distance to the shared model; 0 trains the personal model without it.
    """
    return Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        local=Local(update=TwoModels(NearReceived(strength)), deploy=personal_model),
        about=About(
            label="Ditto",
            paper="Li et al., ICML 2021, arXiv 2012.04221",
            idea="Each hospital also trains a personal model, which stays close to the shared averaged model.",
            partition="all GLOBAL; a second model never leaves the site",
            objective="task loss; second model: + lambda/2 squared distance to the received weights",
            aggregator="sample-weighted mean",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )


@dataclass(frozen=True)
class NearReceived:
    """The objective of the personal model: h_k(v; w_t) = F_k(v) + lambda/2 ||v - w_t||^2."""

    recordable: ClassVar[bool] = True
    strength: float

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms = task_objective(network, batch, context)
        if self.strength == 0:
            return terms
        return [*terms, Term("distance", 0.5 * self.strength * squared_distance(network, context))]


@dataclass(frozen=True)
class TwoModels:
    """Train the shared model as FedAvg does, then the personal model, each with its own optimizer."""

    objective: NearReceived

    def __call__(self, work: LocalWork) -> Losses:
        personal = copy.deepcopy(work.network)
        if state := below(PERSONAL, work.context.memory):
            personal.load_state_dict(state)
        else:
            paste(work.context.received, work.partition, personal.state_dict())  # all sites start alike
        losses = work.train()  # w, as in FedAvg
        others = work.train(self.objective, network=personal, key="personal")  # v, close to w_t
        work.context.memory.update(prefixed(PERSONAL, personal.state_dict()))
        return losses | {f"personal_{name}": value for name, value in others.items()}


def personal_model(state: State, memory: State) -> State:
    """Return the personal model, or the shared model before the site's first round."""
    return below(PERSONAL, memory) or state
