"""Take one site's model for all: the first site trains on pooled frames (centralised training)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update, site_order
from shared_components.core.partition import Partition


@dataclass(frozen=True)
class FirstSite(StatelessStart):
    """Send the first site's pieces to everybody. The state is empty."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the first site's update as the next model.

        Raises:
            ValueError: It is not among the updates.
        """
        first = site_order(models.mixed)[0]
        found = [update for update in updates if update.site == first]
        if not found:
            raise ValueError(f"{first} trains for all sites and sent no update; see its log")
        return Aggregation(state, Models(dict(found[0].pieces), models.mixed))
