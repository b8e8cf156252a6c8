"""FedAvg with norm clipping of updates: Sun et al., Can You Really Backdoor Federated Learning?, arXiv 1911.07963."""

from shared_components.core.aggregators.robust import BoundedMean
from shared_components.core.method import About, Method, Server
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import AboveZero


def build(*, times: AboveZero | None = 1.0) -> Method:
    """Return FedAvg with clipped norms of updates, at ``times`` the round's median update norm; None: no bound."""
    return Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=BoundedMean(times)),
        about=About(
            label="Norm bound",
            paper="Sun et al., arXiv 1911.07963",
            idea="As FedAvg, but changes longer than the median change are shortened to its length.",
            aggregator="sample-weighted mean of updates clipped to the median norm",
            secure_sums="no: the server needs each site's norm",
        ),
    )
