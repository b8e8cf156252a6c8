"""Local training: every site trains on its own; a federation should not be worse than this baseline."""

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Role, everything


def build() -> Method:
    """Return local training: as many steps as in a federation, without any exchange."""
    return Method(
        partition=everything(Role.LOCAL),
        server=Server(aggregator=WeightedMean()),
        requires=Requires(multi_task=True),
        about=About(
            label="Local only",
            paper="reference",
            idea="Each hospital trains without exchange: the baseline that a federation should beat.",
            partition="all LOCAL",
            aggregator="none",
            secure_sums="no: no weights are sent",
        ),
    )
