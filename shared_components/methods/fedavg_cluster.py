"""FedAvg+Cluster: FedAvg (McMahan et al., AISTATS 2017) inside each group of sites with the same task.

The baseline of multi-task federations: MaT-FL (Cai et al.) and FedHCA2 (Lu et al., CVPR 2024) group by task.
"""

from __future__ import annotations

from shared_components.core.aggregators.groups import GroupMean
from shared_components.core.method import Method, Summary
from shared_components.core.objectives import task_objective
from shared_components.core.partition import Role, everything


def build() -> Method:
    """Return FedAvg+Cluster: one model for all sites that have the same task."""
    return Method(
        name="fedavg_cluster",
        rule=everything(Role.MIXED),
        objective=task_objective,
        aggregator=GroupMean(),
        multi_task=True,
        label="FedAvg+Cluster",
        paper="McMahan et al., AISTATS 2017, inside groups of one task",
        summary=Summary(
            idea="Hospitals with the same task share one averaged model; hospitals with other tasks do not "
            "touch it.",
            partition="all MIXED",
            objective="the task's loss",
            aggregator="mean weighted by samples among sites of the same task",
            secure_sums="no: a weighted sum per group hides nothing in groups of one or two sites",
        ),
    )
