"""FedMedian: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (arXiv 1803.01498), the median."""

from shared_components.core.aggregators.robust import TrimmedMean
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role, everything


def build(*, swa: SwaSettings = None) -> Method:
    """Return FedMedian, the coordinate-wise median of sites' weights; ``swa`` as in `averaging.Averaging`."""
    aggregator = TrimmedMean()
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=aggregator),
        requires=Requires(min_sites=aggregator.min_sites),
        about=About(
            label="FedMedian",
            paper="Yin et al., ICML 2018, arXiv 1803.01498",
            idea="The server takes the median instead of the mean, so that a faulty hospital cannot spoil the model.",
            aggregator="unweighted coordinate-wise median",
            secure_sums="no: the server sorts sites' values",
        ),
    )
    return averaged(method, swa, "fedmedian")
