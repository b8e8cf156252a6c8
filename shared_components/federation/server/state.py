"""The server's state after a round, as tensors and values for a resume, and the messages that it sends by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from shared_components.core.method import Method, Models, Profile, site_order
from shared_components.core.partition import Partition
from shared_components.data.profile_items import ITEMS
from shared_components.federation.messages import Job, Message
from shared_components.federation.runs.store import groups_of, named_groups
from shared_components.federation.server.enrolment import load_profile, profile_header


@dataclass
class ServerState:
    """All that a resume needs of a run's server, but for the records of its rounds."""

    sites: list[str]  # that take part, in order
    numbers: dict[str, int]  # of all sites that were asked to enrol; they stay when a site is left out
    round: int = 0  # the one under way; the number of rounds once all are done
    profiles: dict[str, Profile] = field(default_factory=dict)
    partition: Partition = field(default_factory=lambda: Partition(()))
    models: Models = field(default_factory=lambda: Models({}, {}))
    aggregator: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)  # optimizers and memory of the training at the server
    answered: dict[str, int] = field(default_factory=dict)  # the last round in which each site's update counted
    own: dict[str, Any] | None = None  # header of the profile of the server's own data, where it trains

    def pack(self, records: list[dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state's tensors and values, with the records of the rounds so far."""
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
        cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, round: int
    ) -> tuple[ServerState, list[dict[str, Any]]]:
        """Undo `pack`: return the state, with ``round`` as the next one, and the records."""
        profiles = {site: load_profile(site, header) for site, header in values["profiles"].items()}
        sites, groups = site_order(profiles), groups_of(tensors)
        mixed = {site: groups.get(f"mixed:{site}", {}) for site in sites}
        sent = {g.removeprefix("broadcast:"): p for g, p in groups.items() if g.startswith("broadcast:")}
        state = cls(
            sites=sites,
            numbers=values["numbers"],
            round=round,
            profiles=profiles,
            partition=Partition.from_json(values["partition"]),
            models=Models(groups.get("shared", {}), mixed, sent),
            aggregator=groups.get("state", {}),
            kept=groups.get("kept", {}),
            answered=values["answered"],
            own=values["own"],
        )
        return state, values["records"]


def header_for(site: str, job: Job, run: str, state: ServerState) -> dict[str, Any]:
    """Return the plain values of every message to a site, see `schema.REQUEST`."""
    return {
        "job": job.to_json(),
        "run": run,
        "round": state.round,
        "index": state.sites.index(site),
        "number": state.numbers[site],
        "numbers": len(state.numbers),
        "sites": len(state.sites),
    }


def deliveries(
    job: Job, method: Method, run: str, state: ServerState, models: Models, sites: Sequence[str]
) -> dict[str, Message]:
    """Return each site's own message with its pieces of the models, what is broadcast, and items that sites read."""
    asked = method.requires.items | method.requires.optional_items
    names = sorted(name for name in asked if ITEMS[name].for_sites)
    header: dict[str, Any] = {"items": {n: [state.profiles[s].items.get(n) for s in state.sites] for n in names}}
    if method.requires.pooled:
        header["pool"] = state.sites
    groups = {group: pieces for group, pieces in models.broadcast.items() if pieces}
    return {
        site: Message(
            header_for(site, job, run, state) | header | {"answered": state.answered.get(site)},
            models.of(site),
            dict(groups),
        )
        for site in sites
    }
