"""Local training: every site trains on its own; a federation should not be worse than this baseline."""

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import Method, Requires, Server, describe
from shared_components.core.partition import Role, everything


def build() -> Method:
    """Return local training: as many steps as in a federation, without any exchange."""
    return Method(
        partition=everything(Role.LOCAL),
        server=Server(aggregator=WeightedMean()),
        requires=Requires(multi_task=True),
        about=describe("local"),
    )
