"""FedSAM and FedASAM with stochastic weight averaging: Caldarola et al., Improving Generalization in Federated
Learning by Seeking Flat Minima, ECCV 2022; FL-EndoViT's Algorithm 1."""

from typing import Literal

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Local, Method, Server
from shared_components.core.objectives import SharpnessAware
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import FromZero


def build(
    *,
    rho: FromZero = 0.05,
    adaptive: bool = False,
    eta: FromZero = 0.01,
    scaling: Literal["paper", "as_released"] = "paper",
    swa: SwaSettings = None,
) -> Method:
    """Return FedSAM, or with ``adaptive`` FedASAM.

    Args:
        rho: Radius of the ascent step; 0 is FedAvg. The SAM paper uses 0.05; the released federated code uses 0.5 with
            ``adaptive`` for its own networks.
        adaptive: Scale the radius by the magnitude of each weight (ASAM).
        eta: Number added to |w| in ASAM.
        scaling: Tensors that ASAM scales: ``paper`` means tensors with two or more dimensions, ``as_released`` means
            tensors with "weight" in their name, including normalisation layers.
    """
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        local=Local(gradients=SharpnessAware(rho, adaptive, eta, scaling)),
        about=About(
            label="FedASAM" if adaptive else "FedSAM",
            paper="Caldarola et al., ECCV 2022, arXiv 2203.11834",
            idea="Hospitals search for flat minima, which often generalise better, and the server averages the models.",
            objective="task loss; gradients at the worst nearby point (two passes per step)",
            aggregator="sample-weighted mean; optionally averaged over the last rounds (SWA)",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )
    return averaged(method, swa, "fedsam")
