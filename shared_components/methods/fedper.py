"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818."""

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Method, Server
from shared_components.core.partition_rules import HEAD, modules
from shared_components.core.ranges import SomeNames


def build(*, personal: SomeNames = HEAD) -> Method:
    """Return FedPer: the ``personal`` last layers stay at each site, the rest is averaged; both train together."""
    return Method(
        partition=modules(personal, what="fedper: personal"),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        about=About(
            label="FedPer",
            paper="Arivazhagan et al., arXiv 1912.00818",
            idea="The last decoder stays at the hospital, and all weights before it are averaged.",
            partition="last decoder and classifiers LOCAL, rest GLOBAL",
            aggregator="sample-weighted mean",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )
