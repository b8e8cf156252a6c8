"""Centralised training on the pooled frames of all sites: an upper reference that real hospitals cannot have."""

from typing import Literal

from shared_components.core.aggregators.mean import FirstSite
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Local, LocalUpdate, LocalWork, Losses, Method, Requires, Server
from shared_components.core.partition import Role, everything

Budget = Literal["steps", "epochs"]


def build(*, budget: Budget = "steps", swa: SwaSettings = None) -> Method:
    """Return centralised training, for simulations only.

    The ``budget`` of optimizer steps is as in one site (``steps``), or in all sites together (``epochs``), so that
    every frame is seen as often as in a federation.
    """
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=FirstSite()),
        local=Local(update=_first_site_trains(budget)),
        requires=Requires(pooled=True),
        about=About(
            label="Centralised",
            paper="reference",
            idea="One model is trained on the pooled frames of all hospitals, which real hospitals cannot do.",
            objective="task loss on all sites' frames",
            aggregator="the first site's model",
            secure_sums="no: frames are pooled, in simulations only",
        ),
    )
    return averaged(method, swa, "centralised")


def _first_site_trains(budget: Budget) -> LocalUpdate:
    def update(work: LocalWork) -> Losses:
        if work.context.site != 0:
            return {}
        times = work.context.sites if budget == "epochs" else 1
        return work.train(iterations=work.context.iterations * times)

    return update
