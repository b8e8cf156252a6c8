"""FedMedian: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (arXiv 1803.01498), the median."""

from shared_components.core.aggregators.averaging import SwaSettings, averaged
from shared_components.core.aggregators.robust import TrimmedMean
from shared_components.core.method import Method, Requires, Server, describe
from shared_components.core.partition import Role, everything


def build(*, swa: SwaSettings = None) -> Method:
    """Return FedMedian, the coordinate-wise median of sites' weights; ``swa`` as in `averaging.Averaging`."""
    aggregator = TrimmedMean()
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=aggregator),
        requires=Requires(min_sites=aggregator.min_sites),
        about=describe("fedmedian"),
    )
    return averaged(method, swa, "fedmedian")
