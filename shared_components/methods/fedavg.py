"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017, Algorithm 1."""

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition_rules import all_but
from shared_components.core.ranges import Names


def build(*, personal: Names = (), swa: SwaSettings = None) -> Method:
    """Return FedAvg: one model for all sites, trained on each site's own loss.

    ``personal`` parts or modules never leave the site, such as heads if the sites learn different tasks.
    """
    method = Method(
        partition=all_but(personal, what="fedavg: personal"),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),  # sum_k n_k / n w_k
        requires=Requires(multi_task=bool(personal)),
        about=About(
            label="FedAvg",
            paper="McMahan et al., AISTATS 2017",
            idea="Hospitals train one model, and the server averages it, weighted by the number of frames.",
            aggregator="sample-weighted mean",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )
    return averaged(method, swa, "fedavg")
