"""MaT-FL: Cai et al., Many-Task Federated Learning: A New Problem Setting and A Simple Baseline, CVPRW 2023.

Sites with different tasks share an encoder with those whose encoder changes alike (core/aggregators/clustering.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from shared_components.common.arguments import between, true_or_false
from shared_components.core.aggregators.clustering import Clustering
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role
from shared_components.core.rules import modules


def build(
    *, shared: Sequence[str] = ("encoder",), clusters: int = 2, soft: bool = False, threshold: float = 0.0
) -> Method:
    """Return MaT-FL: encoders are averaged inside clusters, which are found in each round.

    Args:
        shared: Parts or modules that are clustered; of the same shapes at all sites. The rest is LOCAL.
        clusters: Number of clusters.
        soft: Whether to weigh all sites by similarity instead of clustering.
        threshold: Added to the cosines of ``soft``; the larger, the more equal the weights.
    """
    between("mat_fl", "clusters", clusters, 1, whole=True)
    true_or_false("mat_fl", "soft", soft)
    between("mat_fl", "threshold", threshold, 0)
    return Method(
        name="mat_fl",
        partition=modules(shared, what="mat_fl: shared", inside=Role.MIXED, outside=Role.LOCAL),
        server=Server(aggregator=Clustering(clusters, soft, threshold)),
        requires=Requires(multi_task=True),
        about=About(
            label="MaT-FL",
            paper="Cai et al., CVPR Workshops 2023",
            idea="Hospitals keep their decoders and share an encoder with hospitals whose encoders change in "
            "a similar direction.",
            partition="encoder MIXED, decoders and classifiers LOCAL",
            aggregator="mean inside clusters of similar changes, per round",
            secure_sums="no: the server compares sites' changes",
        ),
    )
