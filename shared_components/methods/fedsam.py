"""FedSAM, FedASAM and their server's weight averaging: Caldarola et al., Improving Generalization in Federated
Learning by Seeking Flat Minima, ECCV 2022; FL-EndoViT's Algorithm 1."""

from __future__ import annotations

from shared_components.common.arguments import between, true_or_false
from shared_components.core.aggregators.server_optimizers import AveragedMean, delivered
from shared_components.core.method import About, Local, Method, Requires, Server
from shared_components.core.objectives import SharpnessAware
from shared_components.core.partition import Role, everything


def build(
    *,
    rho: float = 0.05,
    adaptive: bool = False,
    eta: float = 0.01,
    average_from: int | None = None,
    average_cycle: int = 1,
) -> Method:
    """Return FedSAM, or with ``adaptive`` FedASAM.

    Args:
        rho: Radius of the ascent; 0 is FedAvg. SAM's paper has 0.05; the released federated code 0.5 with
            ``adaptive``, for its own networks.
        adaptive: Let the radius follow the size of each weight (ASAM).
        eta: Added to |w| in ASAM.
        average_from: Round from which the server also averages the models over rounds (SWA) and delivers that mean
            at the end; the paper begins at three quarters of the rounds. None: never.
        average_cycle: Number of rounds from one averaged model to the next.
    """
    between("fedsam", "rho", rho, 0)
    true_or_false("fedsam", "adaptive", adaptive)
    between("fedsam", "eta", eta, 0)
    between("fedsam", "average_from", average_from, 0, whole=True, null="never")
    between("fedsam", "average_cycle", average_cycle, 1, whole=True)
    return Method(
        name="fedsam",
        partition=everything(Role.GLOBAL),
        server=Server(
            aggregator=AveragedMean(average_from, average_cycle),
            finish=delivered if average_from is not None else None,
            weighted_sum_only=True,
        ),
        local=Local(gradients=SharpnessAware(rho, adaptive, eta)),
        requires=Requires(min_rounds=1 if average_from is None else average_from + 1),
        about=About(
            label="FedASAM" if adaptive else "FedSAM",
            paper="Caldarola et al., ECCV 2022, arXiv 2203.11834",
            idea="Hospitals train towards weights around which the loss stays low, which often serve unseen "
            "data better; the server averages the models.",
            objective="the task's loss, gradients at the worst nearby point (two passes a step)",
            aggregator="mean weighted by samples; on demand averaged over the last rounds (SWA)",
            secure_sums="yes: the weighted sum is all that the server needs",
        ),
    )
