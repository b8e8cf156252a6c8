"""Multi-Krum: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017 (arXiv 1703.02757)."""

from shared_components.common.arguments import between, one_of
from shared_components.core.aggregators.averaging import SwaSettings, averaged
from shared_components.core.aggregators.robust import NEIGHBOURS, Krum
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role, everything


def build(*, faults: int = 0, keep: float | None = None, neighbours: str = "n-f-2", swa: SwaSettings = None) -> Method:
    """Return Multi-Krum: the mean of the models that are nearest to their neighbours.

    Args:
        faults: Number f of faulty or hostile sites to tolerate; n >= 2f + 3 sites are needed.
        keep: Number m of averaged sites, at most n - f; 1 is Krum, None is n - f. A number below 1 is a share of the
            sites: two thirds keep 6 of 9.
        neighbours: Number of neighbours in the score: ``n-f-2`` as in the paper, or ``n-f-1`` as in ByzFL.
    """
    between("multi_krum", "faults", faults, 0, whole=True)
    if not (isinstance(keep, float) and 0 < keep < 1):
        between("multi_krum", "keep", keep, 1, whole=True, null="n - f; a number below 1 is a share of the sites")
    one_of("multi_krum", "neighbours", neighbours, NEIGHBOURS)
    aggregator = Krum(faults, keep, neighbours)
    method = Method(
        name="multi_krum",
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
    return averaged(method, swa)
