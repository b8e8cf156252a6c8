"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from shared_components.common.arguments import between
from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import (
    About,
    Batch,
    Context,
    Local,
    LocalWork,
    Losses,
    Method,
    Server,
    State,
    Term,
    task_objective,
)
from shared_components.core.objectives import squared_distance
from shared_components.core.partition import Role, below, everything, paste, prefixed

PERSONAL = "personal/"


def build(*, strength: float = 0.1) -> Method:
    """Return Ditto: FedAvg's common model, and at every site a model of its own that is held near to it.

    Args:
        strength: The paper's lambda: 0 is local training of the personal model, large values FedAvg.
    """
    between("ditto", "strength", strength, 0)
    return Method(
        name="ditto",
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        local=Local(update=TwoModels(NearReceived(strength)), deploy=personal_model),
        about=About(
            label="Ditto",
            paper="Li et al., ICML 2021, arXiv 2012.04221",
            idea="Hospitals share one averaged model, and each trains a second one of its own that must "
            "stay close to what was shared.",
            partition="all GLOBAL; a second model never leaves the site",
            objective="the task's loss; the second model also lambda/2 its squared distance to what was received",
            aggregator="mean weighted by samples",
            secure_sums="yes: the weighted sum is all that the server needs",
        ),
    )


@dataclass(frozen=True)
class NearReceived:
    """h_k(v; w_t) = F_k(v) + lambda/2 ||v - w_t||^2."""

    strength: float

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms = task_objective(network, batch, context)
        if self.strength == 0:
            return terms
        distance = squared_distance(network, context.received)
        return [*terms, Term("distance", 0.5 * self.strength * distance)]


@dataclass(frozen=True)
class TwoModels:
    """Train the common model as FedAvg does, then the site's own one, each with its own optimizer."""

    objective: NearReceived

    def __call__(self, work: LocalWork) -> Losses:
        own = copy.deepcopy(work.network)
        if kept := personal_state(work.context.memory):
            own.load_state_dict(kept)
        else:
            paste(work.context.received, work.partition, own.state_dict())
        losses = work.train()
        mine = work.train(self.objective, network=own, key="personal")
        work.context.memory.update(prefixed(PERSONAL, own.state_dict()))
        return losses | {f"personal_{name}": value for name, value in mine.items()}


def personal_state(memory: State) -> State:
    """Return the site's own model; empty before its first round."""
    return below(PERSONAL, memory)


def personal_model(state: State, memory: State) -> State:
    """Let the site use its own model as soon as it has one."""
    return personal_state(memory) or state
