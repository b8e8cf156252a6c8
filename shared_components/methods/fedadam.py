"""FedAdam: Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv 2003.00295), Algorithm 2."""

from shared_components.core.aggregators.averaging import SwaSettings, averaged
from shared_components.core.aggregators.server_optimizers import ServerAdam
from shared_components.core.method import Method, Server, describe
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import AboveZero, Mode, ShareBelowOne


def build(
    *,
    mode: Mode = "corrected",
    learning_rate: AboveZero = 0.01,
    beta_1: ShareBelowOne = 0.9,
    beta_2: ShareBelowOne = 0.99,
    tau: AboveZero = 1e-3,
    swa: SwaSettings = None,
) -> Method:
    """Return FedAdam: FedAvg whose server steps with Adam.

    Args:
        mode: ``corrected`` is the paper's rule without bias correction; ``as_released`` is Flower's with it.
        learning_rate: Server learning rate eta; about the distance that each weight moves in a round.
        beta_1, beta_2: Decay rates of the first and second moments.
        tau: Number added to the root of the second moment; larger values are less adaptive.
    """
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(
            aggregator=ServerAdam(learning_rate, beta_1, beta_2, tau, released=mode == "as_released"),
            weighted_sum_only=True,
        ),
        about=describe("fedadam"),
    )
    return averaged(method, swa, "fedadam")
