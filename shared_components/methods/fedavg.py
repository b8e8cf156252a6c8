"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017, Algorithm 1."""

from __future__ import annotations

from shared_components.aggregators.mean import WeightedMean
from shared_components.method import Method
from shared_components.objectives import segmentation_objective
from shared_components.partition import Role, everything


def build() -> Method:
    """Return FedAvg: one model for all sites, trained on each site's own loss."""
    return Method(
        name="fedavg",
        rule=everything(Role.GLOBAL),
        objective=segmentation_objective,
        aggregator=WeightedMean(),
        paper="McMahan et al., AISTATS 2017",
    )
