"""FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, arXiv 1909.06335."""

from shared_components.core.aggregators.server_optimizers import ServerMomentum
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Method, Server
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import AboveZero, ShareBelowOne


def build(*, momentum: ShareBelowOne = 0.9, learning_rate: AboveZero = 1.0, swa: SwaSettings = None) -> Method:
    """Return FedAvgM: FedAvg whose server steps with momentum; 0 with a learning rate of 1 is FedAvg, bit by bit."""
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=ServerMomentum(momentum, learning_rate), weighted_sum_only=True),
        about=About(
            label="FedAvgM",
            paper="Hsu et al., arXiv 1909.06335",
            idea="Hospitals train one model, and the server adds momentum from earlier rounds to their mean change.",
            aggregator="sample-weighted mean, then a momentum step",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )
    return averaged(method, swa, "fedavgm")
