"""Multi-Krum: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017 (arXiv 1703.02757)."""

from typing import Annotated

from msgspec import Meta

from shared_components.core.aggregators.robust import Krum, Neighbours
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import CountFromZero

WHOLE = "it is a whole number, at least 1, or null for n - f; a number below 1 is a share of the sites"
Keep = Annotated[float | None, Meta(description=WHOLE)]


def build(
    *, faults: CountFromZero = 0, keep: Keep = None, neighbours: Neighbours = "n-f-2", swa: SwaSettings = None
) -> Method:
    """Return Multi-Krum: the mean of the models that are nearest to their neighbours.

    Args:
        faults: Number f of faulty or hostile sites to tolerate; n >= 2f + 3 sites are needed.
        keep: Number m of averaged sites, at most n - f; 1 is Krum, None is n - f. A number below 1 is a share of the
            sites: two thirds keep 6 of 9.
        neighbours: Number of neighbours in the score: ``n-f-2`` as in the paper, or ``n-f-1`` as in ByzFL.
    """
    if not (keep is None or 0 < keep < 1 or (isinstance(keep, int) and keep >= 1)):
        raise ValueError(f"multi_krum: keep is {keep!r}; {WHOLE}")
    aggregator = Krum(faults, keep, neighbours)
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=aggregator),
        requires=Requires(min_sites=aggregator.min_sites),
        about=About(
            label="Multi-Krum",
            paper="Blanchard et al., NeurIPS 2017, arXiv 1703.02757",
            idea="The server averages the models closest to their neighbours, so that faulty hospitals are left out.",
            aggregator="unweighted mean of the sites nearest to their neighbours",
            secure_sums="no: the server compares sites' weights",
        ),
    )
    return averaged(method, swa, "multi_krum")
