"""Krum: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017 (arXiv 1703.02757)."""

from shared_components.core.aggregators.robust import Krum, Neighbours
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import CountFromZero


def build(*, faults: CountFromZero = 0, neighbours: Neighbours = "n-f-2", swa: SwaSettings = None) -> Method:
    """Return Krum: all sites continue from the model that is nearest to its neighbours.

    ``faults`` is the number f of faulty or hostile sites to tolerate; n >= 2f + 3 sites are needed. ``neighbours`` in
    the score are ``n-f-2`` as in the paper, or ``n-f-1`` as in ByzFL.
    """
    aggregator = Krum(faults, neighbours=neighbours)
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=aggregator),
        requires=Requires(min_sites=aggregator.min_sites),
        about=About(
            label="Krum",
            paper="Blanchard et al., NeurIPS 2017, arXiv 1703.02757",
            idea="The server keeps the model that is closest to its neighbours, so that faulty hospitals are left out.",
            aggregator="model of the site nearest to its neighbours",
            secure_sums="no: the server compares sites' weights",
        ),
    )
    return averaged(method, swa, "krum")
