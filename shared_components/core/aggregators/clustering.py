"""Average inside groups of sites: with similar weights (MaT-FL, Cai et al.), or with the same task."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from shared_components.core.aggregators import mean as sums
from shared_components.core.card import Card
from shared_components.core.method import Aggregation, Models, Profile, State, StatelessStart, Update, site_order
from shared_components.core.partition import Partition, below, prefixed

SAME = 1e-12  # a site has no direction below this squared length, relative to the soup


def from_the_soup(all_pieces: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> tuple[Tensor, float]:
    """Return (K, K) inner products of theta_i - soup (the plain mean of float pieces) in float64, and |soup|^2."""
    products = torch.zeros(len(all_pieces), len(all_pieces), dtype=torch.float64)
    length = 0.0
    floats = sums.parameter_names(all_pieces[0])
    for name in [name for name in names if name in floats]:
        for rows in sums.stacked_blocks([pieces[name] for pieces in all_pieces]):  # (K, n)
            soup = rows.mean(0, keepdim=True)  # (1, n)
            length += float(soup.square().sum())
            rows -= soup
            products += rows @ rows.T
    return products, length


def cosines(products: Tensor, length: float) -> Tensor | None:
    """Return (K, K) cosines from (K, K) inner products, or None if a site equals the soup, of squared ``length``."""
    squares = products.diagonal()
    if bool((squares <= SAME * length).any()) or bool((squares <= 0).any()):
        return None
    norms = squares.sqrt()  # (K,)
    return (products / norms[:, None] / norms[None, :]).clamp(-1.0, 1.0)


def average_linkage(distances: Tensor, clusters: int) -> list[int]:
    """Return each site's cluster by average linkage of distances (K, K), numbered by first site."""
    table = distances.tolist()
    members = [[i] for i in range(len(table))]

    def mean_distance(pair: tuple[int, int]) -> float:
        between = [table[i][j] for i in members[pair[0]] for j in members[pair[1]]]
        return sum(between) / len(between)

    while len(members) > clusters:
        first, second = min(combinations(range(len(members)), 2), key=mean_distance)
        members[first] += members.pop(second)
    return [next(k for k, own in enumerate(members) if i in own) for i in range(len(table))]


@dataclass(frozen=True)
class Clustering(StatelessStart):
    """Mean of the MIXED pieces over similar sites, unweighted; without state. An absent site keeps its model."""

    clusters: int = 2
    soft: bool = False
    threshold: float = 0.0

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = sums.in_site_order(updates)
        names, sites = list(updates[0].pieces), [update.site for update in updates]
        weights, report = self._weights(updates, names)
        mixed = dict(models.mixed)
        for update, row in zip(updates, weights.tolist(), strict=True):
            mixed[update.site] = sums.weighted_pieces(updates, row, names)
        report["mixing"] = {
            site: {"shared": dict(zip(sites, row, strict=True))}  # site -> layer -> source
            for site, row in zip(sites, weights.tolist(), strict=True)
        }
        return Aggregation(state, Models(models.shared, mixed), report)

    def _weights(self, updates: Sequence[Update], names: Sequence[str]) -> tuple[Tensor, dict[str, Any]]:
        similarity = cosines(*from_the_soup([update.pieces for update in updates], names))
        if similarity is None:  # no direction to compare: plain mean
            clusters = [0] * len(updates)
        elif self.soft:  # the cosine of a site with itself is 1, so no row is zero for a threshold above -1
            raised = (similarity + self.threshold).clamp_min(0)
            return raised / raised.sum(1, keepdim=True), {}
        else:
            clusters = average_linkage(1 - similarity, self.clusters)
        own = torch.tensor(clusters)  # (K,)
        together = (own[:, None] == own[None, :]).to(torch.float64)  # (K, K)
        groups = {update.site: cluster for update, cluster in zip(updates, clusters, strict=True)}
        return together / together.sum(1, keepdim=True), {"groups": groups}


# properties that define groups of sites
GROUPS: dict[str, Callable[[Card], Hashable]] = {"task": lambda card: card, "kind": lambda card: card.kind}


def first_groups(profiles: Sequence[Profile], group: str = "task") -> State:
    """Return the group number of each site as ``group/<site>``, counted in site order; see `GROUPS`."""
    cards = {profile.site: GROUPS[group](profile.card) for profile in profiles}
    numbers: dict[Hashable, int] = {}
    for site in site_order(cards):
        numbers.setdefault(cards[site], len(numbers))
    return prefixed("group/", {site: torch.tensor(numbers[cards[site]]) for site in site_order(cards)})


def groups_of(state: State) -> dict[str, int]:
    """Return the group of each site, in site order."""
    groups = below("group/", state)
    return {site: int(groups[site]) for site in site_order(groups)}


@dataclass(frozen=True)
class GroupMean:
    """Mean of the MIXED pieces inside each group, weighted by samples, also for absent sites."""

    group: str = "task"  # one of `GROUPS`

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        """Return the groups; raise ValueError if the models of a group differ in shape."""
        first: dict[int, str] = {}
        for site, group in groups_of(state := first_groups(profiles, self.group)).items():
            other = first.setdefault(group, site)
            for name, value in models.mixed[site].items():
                if value.shape != models.mixed[other][name].shape:
                    raise ValueError(
                        f"{other} and {site} share a group, but their {name} differ in shape; make it personal"
                    )
        return state

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        groups, mixed = groups_of(state), dict(models.mixed)
        for group in sorted(set(groups.values())):
            present = [update for update in updates if groups[update.site] == group]
            sites = [site for site in mixed if groups[site] == group]
            if present:
                mean = sums.mean_pieces(present, mixed[sites[0]])
                mixed |= {site: dict(mean) for site in sites}
        return Aggregation(state, Models(models.shared, mixed), {"groups": groups})
