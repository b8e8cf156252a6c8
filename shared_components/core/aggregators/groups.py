"""Average inside groups of sites that have the same task (FedAvg+Cluster)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared_components.core.aggregators.mean import mean_pieces
from shared_components.core.card import Card
from shared_components.core.method import Aggregation, Models, Profile, State, Update, site_order
from shared_components.core.partition import Partition, below, prefixed

PREFIX = "group/"


def first_groups(profiles: Sequence[Profile]) -> State:
    """Number every site's task in site order, as ``group/<site>``; equal cards have equal numbers."""
    cards = {profile.site: profile.card for profile in profiles}
    numbers: dict[Card, int] = {}
    for site in site_order(cards):
        numbers.setdefault(cards[site], len(numbers))
    return prefixed(PREFIX, {site: torch.tensor(numbers[cards[site]]) for site in site_order(cards)})


def groups_of(state: State) -> dict[str, int]:
    """Return every site's group, in site order."""
    groups = below(PREFIX, state)
    return {site: int(groups[site]) for site in site_order(groups)}


@dataclass(frozen=True)
class GroupMean:
    """Average the MIXED pieces by sample count inside each group. The state is every site's group.

    A group of which no site answered keeps its models; an absent site receives its group's mean.
    """

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the groups."""
        return first_groups(profiles)

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return every group's mean to its sites."""
        groups, mixed = groups_of(state), dict(models.mixed)
        for group in sorted(set(groups.values())):
            present = [update for update in updates if groups[update.site] == group]
            sites = [site for site in mixed if groups[site] == group]
            if present:
                mean = mean_pieces(present, mixed[sites[0]])
                mixed |= {site: dict(mean) for site in sites}
        return Aggregation(state, Models(models.shared, mixed), {"groups": groups})
