"""Weigh every site's shared model by the Fisher information of its whole model (FedAS, Yang et al., CVPR 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shared_components.core.aggregators.mean import in_site_order, weighted_pieces
from shared_components.core.losses import pixel_cross_entropy
from shared_components.core.method import Aggregation, Batch, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition
from shared_components.networks.parts import trained_parameters

GROUP = "fisher"  # the extra in which a site sends its trace


def fisher_trace(network: nn.Module, batches: Iterable[Batch]) -> float:
    """Return the trace of the empirical Fisher matrix of all trained parameters, with batches for samples.

    It is the sum over batches of |gradient of the batch's mean pixel cross-entropy|^2, dropout off, and depends on
    the batch size.
    """
    parameters = list(trained_parameters(network).values())
    was_training, total = network.training, 0.0
    network.eval()
    for batch in batches:
        loss = pixel_cross_entropy(network(batch["image"]).float(), batch["label"])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        total += sum(float(g.detach().double().square().sum()) for g in gradients if g is not None)
    network.train(was_training)
    return total


def fisher_weights(traces: Sequence[float], largest: float = 1.0) -> list[float]:
    """Return weights in proportion to the traces, none above ``largest``, that sum to 1.

    What is cut off goes to the other sites in proportion to their traces. Traces that are all zero give equal weights,
    and so does a cap that K sites cannot keep (largest * K <= 1).
    """
    count, total = len(traces), math.fsum(traces)
    if not total > 0 or largest * count <= 1:
        return [1 / count] * count
    weights = [trace / total for trace in traces]  # F_k / sum of F
    capped: set[int] = set()
    while over := {i for i, weight in enumerate(weights) if i not in capped and weight > largest}:
        capped |= over  # what the others take over may lift one of them above the cap
        room = 1 - largest * len(capped)
        rest = math.fsum(traces[i] for i in range(count) if i not in capped)
        even = room / (count - len(capped))
        weights = [largest if i in capped else room * traces[i] / rest if rest > 0 else even for i in range(count)]
    return weights


@dataclass(frozen=True)
class FisherMean(StatelessStart):
    """Average the GLOBAL pieces with weights in proportion to the sites' traces; there is no state."""

    largest: float = 1.0

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return sum_k fisher_k theta_k / sum_k fisher_k, and the weights for the record."""
        updates = in_site_order(updates)
        traces = {update.site: float(update.extras[GROUP]["value"]) for update in updates}
        weights = fisher_weights(list(traces.values()), self.largest)
        shared = weighted_pieces(updates, weights, models.shared)
        report = {"fisher": traces, "weights": dict(zip(traces, weights, strict=True))}
        return Aggregation(state, Models(shared, models.mixed), report)
