"""What a run's server keeps after every round, as tensors and values, and takes up again at a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.core.method import Models, Profile, site_order
from shared_components.core.partition import Partition
from shared_components.federation.messages import FederationError
from shared_components.federation.server.enrolment import profile_header, profile_of
from shared_components.federation.store import groups_of, named_groups


@dataclass
class ServerState:
    """All that a resume needs of a run's server, but for the records of its rounds.

    Attributes:
        sites: Who takes part, in order.
        numbers: Of every site that was there when the run began; they stay, whoever is left out.
        round: The one under way, from 0 on; the number of rounds once all are done.
        profiles: What the sites enrolled with.
        partition: The roles of the network's slices.
        models: What the sites hold of the network, and what they are sent besides.
        aggregator: The aggregator's tensors.
        kept: Of the server's own training: optimizers, memory.
        answered: The last round of each site whose update counted.
        own: Header of the profile of the server's own data, where it trains.
    """

    sites: list[str]
    numbers: dict[str, int]
    round: int = 0
    profiles: dict[str, Profile] = field(default_factory=dict)
    partition: Partition = field(default_factory=lambda: Partition(()))
    models: Models = field(default_factory=lambda: Models({}, {}))
    aggregator: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    own: dict[str, Any] | None = None

    @classmethod
    def of_new_run(cls, sites: Sequence[str]) -> ServerState:
        """Return the state before anybody has enrolled."""
        ordered = site_order(sites)
        return cls(ordered, {site: n for n, site in enumerate(ordered)})

    def pack(self, records: list[dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the values that a resume needs, with the records of the rounds so far."""
        groups = {"shared": self.models.shared, "state": self.aggregator, "kept": self.kept}
        groups |= {f"mixed:{site}": pieces for site, pieces in self.models.mixed.items()}
        groups |= {f"broadcast:{group}": pieces for group, pieces in self.models.broadcast.items()}
        values = {
            "profiles": {site: profile_header(profile) for site, profile in self.profiles.items()},
            "partition": self.partition.to_json(),
            "records": records,
            "answered": self.answered,
            "numbers": self.numbers,
            "own": self.own,
        }
        return named_groups(groups), values

    @classmethod
    def unpack(
        cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, round: int, folder: Path
    ) -> tuple[ServerState, list[dict[str, Any]]]:
        """Undo `pack`: return the state and the records.

        Args:
            tensors: What `pack` returned.
            values: Likewise.
            round: The one to go on with.
            folder: The run's, for the error.

        Raises:
            FederationError: An older version of surgfl wrote it, which kept less.
        """
        if "answered" not in values:
            raise FederationError(
                f"{folder} was begun by an older version of surgfl; finish it with that one, or start a new run"
            )
        profiles = {site: profile_of(site, header) for site, header in values["profiles"].items()}
        sites, groups = site_order(profiles), groups_of(tensors)
        mixed = {site: groups.get(f"mixed:{site}", {}) for site in sites}
        sent = {g.removeprefix("broadcast:"): p for g, p in groups.items() if g.startswith("broadcast:")}
        state = cls(
            sites=sites,
            numbers=values.get("numbers") or {site: n for n, site in enumerate(sites)},
            round=round,
            profiles=profiles,
            partition=Partition.from_json(values["partition"]),
            models=Models(groups.get("shared", {}), mixed, sent),
            aggregator=groups.get("state", {}),
            kept=groups.get("kept", {}),
            answered=values["answered"],
            own=values.get("own"),  # older states have none
        )
        return state, values["records"]
