"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Batch, Context, Local, Method, Requires, Server, Term, task_objective
from shared_components.core.objectives import squared_distance
from shared_components.core.partition_rules import all_but
from shared_components.core.ranges import FromZero, Mode, Names


def build(*, mu: FromZero = 0.01, mode: Mode = "corrected", personal: Names = ()) -> Method:
    """Return FedProx: FedAvg whose local loss adds mu/2 times the squared distance to the received weights.

    FedBN's released FedProx has ``mu`` 0.01. With mode ``as_released``, the term is logged but has no gradient, as in
    SurgFed's released baseline. ``personal`` parts or modules never leave the site, such as heads of different tasks.
    """
    return Method(
        partition=all_but(personal, what="fedprox: personal"),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        local=Local(objective=Proximal(mu, inert=mode == "as_released")),
        requires=Requires(multi_task=bool(personal)),
        about=About(
            label="FedProx",
            paper="Li et al., MLSys 2020, arXiv 1812.06127",
            idea="As FedAvg, but each hospital's model stays close to the received model during training.",
            objective="task loss + mu/2 squared distance to the received weights",
            aggregator="sample-weighted mean",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )


@dataclass(frozen=True)
class Proximal:
    """Objective: h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2 over the trained tensors."""

    recordable: ClassVar[bool] = True
    mu: float
    inert: bool = False  # detach the term: the released code adds it only to a logged number

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms = task_objective(network, batch, context)
        if self.mu == 0:
            return terms
        term = 0.5 * self.mu * squared_distance(network, context)  # mu/2 ||w - w_t||^2
        return [*terms, Term("proximal", term.detach() if self.inert else term)]
