"""Trimmed mean: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (arXiv 1803.01498)."""

from shared_components.core.aggregators.robust import TrimmedMean
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import CountFromZero


def build(*, trim: CountFromZero = 1) -> Method:
    """Return the trimmed mean: for each weight, the sites' mean without ``trim`` values at each end."""
    aggregator = TrimmedMean(trim)
    return Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=aggregator),
        requires=Requires(min_sites=aggregator.min_sites),
        about=About(
            label="Trimmed mean",
            paper="Yin et al., ICML 2018, arXiv 1803.01498",
            idea="The server averages without extreme values, so that faulty hospitals cannot spoil the model.",
            aggregator="unweighted coordinate-wise mean without extreme values",
            secure_sums="no: the server sorts sites' values",
        ),
    )
