"""MaT-FL: Cai et al., Many-Task Federated Learning: A New Problem Setting and A Simple Baseline, CVPRW 2023.

Sites with different tasks share an encoder if their encoders change similarly (core/aggregators/clustering.py).
"""

from shared_components.core.aggregators.clustering import Clustering
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role
from shared_components.core.partition_rules import modules
from shared_components.core.ranges import Count, FromZero, SomeNames


def build(
    *, shared: SomeNames = ("encoder",), clusters: Count = 2, soft: bool = False, threshold: FromZero = 0.0
) -> Method:
    """Return MaT-FL: encoders are averaged inside clusters of sites, which are recomputed in each round.

    Args:
        shared: Parts or modules averaged in clusters; all sites have the same shapes. The rest is LOCAL.
        clusters: Number of clusters.
        soft: Weigh all sites by similarity instead of clustering.
        threshold: Number added to the cosines of ``soft``; larger values make the weights more equal.
    """
    return Method(
        partition=modules(shared, what="mat_fl: shared", inside=Role.MIXED, outside=Role.LOCAL),
        server=Server(aggregator=Clustering(clusters, soft, threshold)),
        requires=Requires(multi_task=True),
        about=About(
            label="MaT-FL",
            paper="Cai et al., CVPR Workshops 2023",
            idea="Hospitals keep their decoders and share encoders with hospitals whose encoders change similarly.",
            partition="encoder MIXED, decoders and classifiers LOCAL",
            aggregator="mean inside clusters of similar changes, per round",
            secure_sums="no: the server compares sites' changes",
        ),
    )
