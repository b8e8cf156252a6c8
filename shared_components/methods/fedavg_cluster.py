"""FedAvg+Cluster: FedAvg (McMahan et al., AISTATS 2017) inside each group of sites with the same task.

The baseline of multi-task federations: MaT-FL (Cai et al.) and FedHCA2 (Lu et al., CVPR 2024) group by task.
"""

from typing import Literal

from shared_components.core.aggregators.clustering import GroupMean
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role
from shared_components.core.partition_rules import all_but
from shared_components.core.ranges import Names


def build(*, group: Literal["task", "kind"] = "task", personal: Names = ()) -> Method:
    """Return FedAvg+Cluster: one averaged model for all sites with the same task.

    The ``group`` is the ``task``, including class names, or its ``kind`` (SurgFed, Table I). ``personal`` parts or
    modules never leave the site, such as heads if classes differ inside a group.
    """
    return Method(
        partition=all_but(personal, what="fedavg_cluster: personal", role=Role.MIXED),
        server=Server(aggregator=GroupMean(group)),
        requires=Requires(multi_task=True),
        about=About(
            label="FedAvg+Cluster",
            paper="McMahan et al., AISTATS 2017, per task",
            idea="Hospitals with the same task share one averaged model.",
            partition="all MIXED",
            aggregator="sample-weighted mean, per task",
            secure_sums="no: sums of one or two sites hide nothing",
        ),
    )
