"""FedAvg+Cluster: FedAvg (McMahan et al., AISTATS 2017) inside each group of sites with the same task.

The baseline of multi-task federations: MaT-FL (Cai et al.) and FedHCA2 (Lu et al., CVPR 2024) group by task.
"""

from __future__ import annotations

from shared_components.core.aggregators.clustering import GroupMean
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role, everything


def build() -> Method:
    """Return FedAvg+Cluster: one model for all sites that have the same task."""
    return Method(
        name="fedavg_cluster",
        partition=everything(Role.MIXED),
        server=Server(aggregator=GroupMean()),
        requires=Requires(multi_task=True),
        about=About(
            label="FedAvg+Cluster",
            paper="McMahan et al., AISTATS 2017, inside groups of one task",
            idea="Hospitals with the same task share one averaged model; hospitals with other tasks do not touch it.",
            partition="all MIXED",
            aggregator="mean weighted by samples among sites of the same task",
            secure_sums="no: a weighted sum per group hides nothing in groups of one or two sites",
        ),
    )
