"""FedAdam: Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv 2003.00295), Algorithm 2."""

from shared_components.core.aggregators.server_optimizers import ServerAdam
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Method, Server
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
        about=About(
            label="FedAdam",
            paper="Reddi et al., ICLR 2021, arXiv 2003.00295",
            idea="Hospitals train one model, and the server uses their mean change as a gradient for Adam.",
            aggregator="sample-weighted mean, then an Adam step",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )
    return averaged(method, swa, "fedadam")
