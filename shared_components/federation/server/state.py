"""The server's state and records of a run, saved for a resume, and the messages built from them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.common.atomic import not_written
from shared_components.core.method import Method, Models, Profile, Update, site_order
from shared_components.core.partition import Partition, Role
from shared_components.data.profile_items import ITEMS
from shared_components.federation.messages import Job, Message, Reply, total_bytes
from shared_components.federation.messages.region import RegionalReply
from shared_components.federation.runs.run_check import chained, records_of
from shared_components.federation.runs.store import RoundFiles, groups_of, named_groups
from shared_components.federation.server.enrolment import load_profile, profile_header
from shared_components.federation.server.received_updates import Plain

Record = dict[str, Any]
SPLIT = 2**28  # bytes of the sites' own tensors; more are saved in a file for each site


@dataclass
class ServerState:
    """The server's state that a resume needs, except the records."""

    sites: list[str]  # sites that take part, in order
    numbers: dict[str, int]  # number of every site that was asked to enrol, also of sites left out
    round: int = 0  # current round; the number of rounds at the end
    profiles: dict[str, Profile] = field(default_factory=dict)
    partition: Partition = field(default_factory=lambda: Partition(()))
    models: Models = field(default_factory=lambda: Models({}, {}))
    aggregator: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)  # optimizers and memory of training at the server
    answered: dict[str, int] = field(default_factory=dict)  # last round in which each site's update counted
    own: dict[str, Any] | None = None  # header of the server's own profile, if it trains

    def pack(self, log: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state as tensors and plain values, with the `RoundLog.mark` of the records so far."""
        groups = {"shared": self.models.shared, "state": self.aggregator, "kept": self.kept}
        groups |= {f"mixed:{site}": pieces for site, pieces in self.models.mixed.items()}
        groups |= {f"broadcast:{group}": pieces for group, pieces in self.models.broadcast.items()}
        profiles = {site: profile_header(profile) for site, profile in self.profiles.items()}
        values = {"profiles": profiles, "partition": self.partition.to_json(), "log": log}
        return named_groups(groups), values | {key: getattr(self, key) for key in ("answered", "numbers", "own")}

    def save(self, files: RoundFiles, log: Mapping[str, Any]) -> None:
        """Write the state after the last round; if the sites' own tensors exceed `SPLIT`, in a file for each site."""
        tensors, values = self.pack(log)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            group, _, rest = name.partition("|")  # such as ("mixed:site-1", "w") or ("state", "personal/site-1/w")
            if owners := [site for site in (group.removeprefix("mixed:"), *rest.split("/")) if site in self.profiles]:
                parts.setdefault(owners[0], {})[name] = value
        if sum(map(total_bytes, parts.values())) <= SPLIT:
            parts = {}
        split = {name for part in parts.values() for name in part}
        files.save(self.round - 1, {n: value for n, value in tensors.items() if n not in split}, values, parts)

    @classmethod
    def unpack(cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, round: int) -> ServerState:
        """Return the state that `pack` has packed, with ``round`` as the next round."""
        profiles = {site: load_profile(site, header) for site, header in values["profiles"].items()}
        sites, groups = site_order(profiles), groups_of(tensors)
        mixed = {site: groups.get(f"mixed:{site}", {}) for site in sites}
        broadcast = {g.removeprefix("broadcast:"): p for g, p in groups.items() if g.startswith("broadcast:")}
        known = {key: values[key] for key in ("answered", "numbers", "own")}
        state = cls(sites=sites, round=round, profiles=profiles, **known)
        state.partition = Partition.from_json(values["partition"])
        state.models = Models(groups.get("shared", {}), mixed, broadcast)
        state.aggregator, state.kept = groups.get("state", {}), groups.get("kept", {})
        return state


def header_for(site: str, job: Job, run: str, state: ServerState) -> dict[str, Any]:
    """Return the plain values of every message to a site, see `schema.REQUEST`."""
    place = {"index": state.sites.index(site), "number": state.numbers[site]}
    counts = {"numbers": len(state.numbers), "sites": len(state.sites)}
    return {"job": job.to_json(), "run": run, "round": state.round, **place, **counts}


def deliveries(
    job: Job, method: Method, run: str, state: ServerState, models: Models, sites: Sequence[str]
) -> dict[str, Message]:
    """Return each site's message with its pieces of the models, the broadcast, and the profile items for sites."""
    asked = method.requires.items | method.requires.optional_items
    names = sorted(name for name in asked if ITEMS[name].for_sites)
    shared: dict[str, Any] = {"items": {n: [state.profiles[s].items.get(n) for s in state.sites] for n in names}}
    if method.requires.pooled:
        shared["pool"] = state.sites
    groups = {group: pieces for group, pieces in models.broadcast.items() if pieces}
    headers = {s: header_for(s, job, run, state) | shared | {"answered": state.answered.get(s)} for s in sites}
    return {site: Message(header, models.of(site), dict(groups)) for site, header in headers.items()}


class RoundLog:
    """The records of a run, in order, and their file ``rounds.jsonl``; ``upload`` selects a reply's fields.

    The file only grows. A state file has its length and hash at the end of a round, so that a resume reads the records
    up to there; the next `write` removes the records after it.
    """

    def __init__(self, path: Path, upload: Plain) -> None:
        self._path, self._upload = path, upload
        self.records: list[Record] = []
        self._replies: dict[str, Record] = {}  # records of the current round, by site
        self._noisy: Counter[str] = Counter()  # noisy updates of each site in the rounds before
        self._written, self._length, self._hash = 0, 0, ""  # records, and bytes, in the file; hash of these bytes

    def note(self, site: str, reply: Reply, sent: Message, partition: Partition, *, round: int) -> Record:
        """Record a site's ``reply`` to ``sent`` once per round; return the record."""
        if site not in self._replies:
            values = self._upload.recorded_values(reply)
            sizes = {"up": _bytes(reply, partition), "down": _bytes(sent, partition)}
            self._replies[site] = {"kind": "site", "round": round, "site": site, **values, "bytes": sizes}
        return self._replies[site]

    def close(self, *records: Mapping[str, Any]) -> None:
        """End a round: append the records of replies, in order of site, then ``records``."""
        self.records += [self._replies[site] for site in site_order(self._replies)] + [dict(r) for r in records]
        self._noisy += _noisy_sites(self._replies.values())
        self._replies = {}

    def about(self, updates: Sequence[Update]) -> Record:
        """Return the upload's fields for the aggregation's record."""
        return self._upload.about(updates, self._noisy + _noisy_sites(self._replies.values()))

    def write(self) -> None:
        """Append the new records to the file, and flush it to the disk; NotWritten if that fails."""
        lines = [json.dumps(record).encode() + b"\n" for record in self.records[self._written :]]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.truncate(self._length)
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise not_written(self._path, error) from error
        self._written, self._length = len(self.records), self._length + sum(map(len, lines))
        self._hash = chained(self._hash, lines)

    @property
    def mark(self) -> dict[str, Any]:
        """Length and hash of the file, for the state."""
        return {"length": self._length, "sha256": self._hash}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Read the records that belong to the values of a state; DamagedState if the file lacks them.

        States of earlier versions contain the records themselves.
        """
        if "records" in values:
            self.records, self._noisy = values["records"], _noisy_sites(values["records"])
            self._path.unlink(missing_ok=True)
            return self.write()
        lines = records_of(self._path, values)
        self.records = [json.loads(line) for line in lines]
        self._noisy = _noisy_sites(self.records)
        self._written, self._length, self._hash = len(lines), sum(map(len, lines)), values["log"]["sha256"]


def _noisy_sites(records: Iterable[Record]) -> Counter[str]:
    return Counter(record["site"] for record in records if record.get("noisy"))


def _bytes(message: Message, partition: Partition) -> dict[str, int]:
    if isinstance(message, RegionalReply):
        return {Role.GLOBAL.value: message.bytes}
    sizes = {group: total_bytes(pieces) for group, pieces in message.groups.items()}
    for role in (Role.GLOBAL, Role.MIXED):
        names = partition.with_roles(role)
        if pieces := {name: message.pieces[name] for name in names if name in message.pieces}:
            sizes[role.value] = total_bytes(pieces)
    return sizes
