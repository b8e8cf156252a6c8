"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021."""

from dataclasses import dataclass, replace

from torch import nn

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Batch, Context, Local, Method, Requires, Server, Term, task_term
from shared_components.core.partition import Role
from shared_components.core.partition_rules import HEAD, modules
from shared_components.core.ranges import ShareBetween, SomeNames


def build(*, personal: SomeNames = HEAD, head_share: ShareBetween = 0.5) -> Method:
    """Return FedRep: in each round a site first trains its head (``personal``), then the received body.

    ``head_share`` of a round's steps train the head; each phase has at least one step. The released code uses 10 of 11
    epochs. A round with a single step trains both together, as FedPer does.
    """
    return Method(
        partition=modules(personal, what="fedrep: personal"),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        local=Local(objective=TwoPhases(head_share)),
        requires=Requires(multi_task=True),
        about=About(
            label="FedRep",
            paper="Collins et al., ICML 2021, arXiv 2102.07078",
            idea="Each round trains the last decoder, which stays at the hospital, and then the shared weights.",
            partition="last decoder and classifiers LOCAL, rest GLOBAL",
            objective="task loss; first steps train LOCAL, later steps GLOBAL",
            aggregator="sample-weighted mean",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )


@dataclass(frozen=True)
class TwoPhases:
    """Algorithm 1: the first steps of a round update the head, the others the body."""

    head_share: float

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        if (steps := context.iterations // context.accumulate) <= 1:
            return [task_term(network, batch, context)]
        # the other parameters get no gradient, so momentum and weight decay do not move them either
        head = context.iteration // context.accumulate < head_steps(self.head_share, steps)
        term = task_term(network, batch, context, Role.LOCAL if head else Role.GLOBAL)
        return [replace(term, name="head" if head else "body")]


def head_steps(share: float, iterations: int) -> int:
    """Return the number of steps that train the head, from 1 to iterations - 1; a round has at least two."""
    return min(max(round(share * iterations), 1), iterations - 1)
