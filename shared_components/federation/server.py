"""What the server does: check profiles, send, check updates, aggregate, keep its state. No transport, no FLARE."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared_components.federation.messages import FederationError, Job, Message, total_bytes
from shared_components.federation.store import RoundFiles, newest_run, write_json, write_text
from shared_components.method import Method, Models, Profile, Update, load_method, site_order
from shared_components.partition import Partition, Pieces, Role

logger = logging.getLogger(__name__)


class RejectedUpdate(ValueError):
    """An update that must not be aggregated; the message is the reason."""


class ServerRunner:
    """One run of one job. Everything a resume needs is in the files of ``folder``.

    Call ``resume`` first where a run may be there, then ``enrol_messages`` and ``enrolled`` (also after a
    resume: the sites' data is checked again), then per round ``round_messages`` and ``finish_round``, and
    with the last ``round_messages`` ``finished``.

    Args:
        job: What to run.
        sites: Names of the sites, in any order.
        folder: The run's folder, see :func:`open_run`.
    """

    def __init__(self, job: Job, sites: Sequence[str], folder: Path) -> None:
        self.job = job
        self.folder = folder
        self.sites = site_order(sites)
        self.method: Method = load_method(job.method, **job.arguments)
        self.round = 0
        self.profiles: dict[str, Profile] = {}
        self.partition = Partition(())
        self.models = Models({}, {})
        self.state: dict[str, Tensor] = {}
        self.records: list[dict[str, Any]] = []
        self._files = RoundFiles(folder / "server")
        self._sent_at = time.perf_counter()
        self._noted: dict[str, dict[str, Any]] = {}  # records of the round under way

    @property
    def needed(self) -> int:
        """How many updates a round needs: what the job says, and what the method cannot do without."""
        return max(min(self.job.min_sites or len(self.sites), len(self.sites)), self.method.min_sites)

    # ---- enrolment

    def enrol_messages(self) -> dict[str, Message]:
        """Ask every site for its profile, and the first one for the initial model (of several tasks: all).

        Raises:
            FederationError: The method needs more sites.
        """
        if len(self.sites) < self.method.min_sites:
            raise FederationError(
                f"{self.job.method} needs at least {self.method.min_sites} sites with these arguments, "
                f"and there are {len(self.sites)}; add sites or choose another method"
            )
        asked = self.sites if self.method.multi_task else self.sites[:1]
        return {
            site: self._message(site, {"send_initial": site in asked and not self.profiles})
            for site in self.sites
        }

    def enrolled(self, replies: Mapping[str, Message]) -> None:
        """Check that the profiles fit together and start from the first site's weights.

        Raises:
            FederationError: A site is missing, or sites differ in class map or in the network's pieces.
        """
        if missing := [site for site in self.sites if site not in replies]:
            raise FederationError(f"{', '.join(missing)} did not enrol; no round was started")
        profiles = {site: _profile(site, replies[site].header) for site in self.sites}
        partitions = {site: replies[site].header["partition"] for site in self.sites}
        if not self.method.multi_task:
            maps = {site: p.classes for site, p in profiles.items()}
            _check_equal("class map", maps, "classes in site.yaml")
        _check_equal("network partition", partitions, "the version of surgfl and of the bundle")
        if self.profiles:
            _check_equal_to_before(self.profiles, profiles)
        else:
            self.profiles = profiles
            self.partition = Partition.from_json(partitions[self.sites[0]])
            self.models = self._initial_models(replies)
            self.state = self.method.aggregator.init(self.partition, self.models, list(profiles.values()))
            self._save_run()
        _point_latest_to(self.folder)

    def _initial_models(self, replies: Mapping[str, Message]) -> Models:
        first = replies[self.sites[0]].pieces
        shared = self._of_role(first, Role.GLOBAL)
        own = {site: replies[site].pieces if self.method.multi_task else first for site in self.sites}
        for site, pieces in own.items():
            for name, value in self._of_role(pieces, Role.GLOBAL).items():
                if value.shape != shared[name].shape:
                    raise FederationError(
                        f"{site} and {self.sites[0]} differ in the shape of {name}, which {self.job.method} "
                        "shares; make classes in site.yaml agree"
                    )
        return Models(shared, {site: self._of_role(pieces, Role.MIXED) for site, pieces in own.items()})

    # ---- rounds

    def round_messages(self) -> dict[str, Message]:
        """Return every site's own message for the current round (or for the finish, after the last)."""
        self._sent_at = time.perf_counter()
        models = self.models
        if self.method.finish and self.round >= self.job.rounds:
            models = self.method.finish(self.state, models)
        header: dict[str, Any] = {"styles": self._styles()}
        if self.method.pooled:
            header["pool"] = self.sites
        return {
            site: self._message(site, header, {"pieces": models.of(site), **models.broadcast})
            for site in self.sites
        }

    def note_reply(self, site: str, reply: Message) -> dict[str, Any]:
        """Record a reply as soon as it is there, once; return the record."""
        if site not in self._noted:
            self._noted[site] = self._record_site(site, reply)
        return self._noted[site]

    def check_update(self, site: str, reply: Message) -> Update:
        """Turn a reply into an update.

        Raises:
            RejectedUpdate: It is of another round, misshapen, not finite, too large, or of a wrong sample count.
        """
        header = reply.header
        if header.get("round") != self.round:
            raise RejectedUpdate(f"it is of round {header.get('round')}, this is round {self.round}")
        samples = header.get("samples")
        if (
            isinstance(samples, bool)
            or not isinstance(samples, int)
            or not 0 < samples <= self.profiles[site].samples
        ):
            raise RejectedUpdate(
                f"it reports {samples!r} samples; the site enrolled with {self.profiles[site].samples}"
            )
        if odd := [
            key for key, well_formed in NOTED.items() if key in header and not well_formed(header[key])
        ]:
            raise RejectedUpdate(f"its {odd[0]} has an odd form: {header[odd[0]]!r:.80}")
        sent = self.models.of(site)
        _check_pieces("piece", reply.pieces, sent)
        change = math.sqrt(sum(_squared(reply.pieces[n].double() - sent[n].double()) for n in sent))
        limit = self.job.largest_change * (
            1 + math.sqrt(sum(_squared(value.double()) for value in sent.values()))
        )
        if not change <= limit:
            raise RejectedUpdate(
                f"it moved the weights by {change:.3g}; the job allows {limit:.3g} (largest_change)"
            )
        extras = {group: pieces for group, pieces in reply.tensors.items() if group != "pieces"}
        self._check_extras(extras)
        return Update(site, self.round, reply.pieces, extras, samples)

    def _check_extras(self, extras: Mapping[str, Pieces]) -> None:
        expected = self.method.extras
        if set(extras) != set(expected):
            raise RejectedUpdate(
                f"it carries the extras {sorted(extras)}; {self.method.name} has {sorted(expected)}"
            )
        for group, pieces in extras.items():
            if any(not bool(torch.isfinite(value).all()) for value in pieces.values()):
                raise RejectedUpdate(f"its {group} has values that are not finite")
            try:
                expected[group](pieces, self.models.shared)
            except ValueError as error:
                raise RejectedUpdate(f"its {group}: {error}") from error

    def finish_round(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> dict[str, Any]:
        """Check, aggregate, keep the state and the records; return the aggregation's record.

        Raises:
            FederationError: Fewer valid updates than the round needs.
        """
        updates, rejected = [], dict(failures)
        wall = time.perf_counter() - self._sent_at
        for site in site_order(replies):
            seconds = self.note_reply(site, replies[site]).setdefault("seconds", {})
            seconds["waiting"] = max(0.0, wall - seconds.get("total", 0.0))
            try:
                updates.append(self.check_update(site, replies[site]))
            except RejectedUpdate as error:
                rejected[site] = str(error)
        for site, reason in rejected.items():
            logger.warning("round %d: no update of %s: %s", self.round, site, reason)
        if len(updates) < self.needed:
            reasons = "; ".join(f"{site}: {reason}" for site, reason in rejected.items())
            raise FederationError(
                f"round {self.round} has {len(updates)} valid updates and needs {self.needed}: {reasons}"
            )
        started = time.perf_counter()
        result = self.method.aggregator.apply(self.state, self.partition, self.models, updates)
        self.state, self.models = result.state, result.models
        record = {
            "kind": "aggregation",
            "round": self.round,
            "seconds": time.perf_counter() - started,
            "seconds_wall": wall,
            "rejected": [{"site": site, "reason": reason} for site, reason in rejected.items()],
            **result.report,
        }
        self.records += [self._noted[site] for site in site_order(self._noted)] + [record]
        self._noted = {}
        self.round += 1
        self._save()
        return record

    def finished(self, replies: Mapping[str, Message]) -> None:
        """Record the metrics of the final models."""
        for site in site_order(replies):
            self.records.append(self._record_site(site, replies[site]))
            if final := replies[site].header.get("final"):
                self.records.append({**final, "kind": "final", "site": site})
        self._write_records()

    def note_failure(self, reason: str) -> bool:
        """Write why the run ended early into its run.json; return whether there is one."""
        path = self.folder / "run.json"
        if not path.is_file():
            return False
        write_json(path, {**json.loads(path.read_text()), "error": reason})
        return True

    # ---- state

    def resume(self) -> bool:
        """Load the newest state; return whether there was one."""
        found = self._files.load()
        if found is None:
            return False
        last, tensors, values = found
        self.profiles = {site: _profile(site, header) for site, header in values["profiles"].items()}
        self.sites = site_order(self.profiles)
        self.partition = Partition.from_json(values["partition"])
        self.records = values["records"]
        self.round = last + 1
        groups: dict[str, Pieces] = {}
        for name, value in tensors.items():
            group, _, rest = name.partition("|")
            groups.setdefault(group, {})[rest] = value
        mixed = {site: groups.get(f"mixed:{site}", {}) for site in self.sites}
        sent = {g.removeprefix("broadcast:"): p for g, p in groups.items() if g.startswith("broadcast:")}
        self.models = Models(groups.get("shared", {}), mixed, sent)
        self.state = groups.get("state", {})
        run = json.loads((self.folder / "run.json").read_text())
        run.pop("error", None)
        write_json(self.folder / "run.json", run | {"rounds": self.job.rounds})
        return True

    def _save(self) -> None:
        tensors = {f"shared|{name}": value for name, value in self.models.shared.items()}
        for site, pieces in self.models.mixed.items():
            tensors |= {f"mixed:{site}|{name}": value for name, value in pieces.items()}
        for group, pieces in self.models.broadcast.items():
            tensors |= {f"broadcast:{group}|{name}": value for name, value in pieces.items()}
        tensors |= {f"state|{name}": value for name, value in self.state.items()}
        values = {
            "profiles": {site: _profile_header(profile) for site, profile in self.profiles.items()},
            "partition": self.partition.to_json(),
            "records": self.records,
        }
        self._files.save(self.round - 1, tensors, values)
        self._write_records()

    def _save_run(self) -> None:
        from shared_components.federation.provenance import provenance

        info = {
            "job": self.job.to_json(),
            "method": self.job.method,
            "arguments": dict(self.job.arguments),
            "bundle": self.job.bundle,
            "rounds": self.job.rounds,
            "sites": self.sites,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            **provenance(self.job),
        }
        write_json(self.folder / "run.json", info)

    def _write_records(self) -> None:
        write_text(
            self.folder / "server" / "rounds.jsonl", "".join(json.dumps(r) + "\n" for r in self.records)
        )

    def _record_site(self, site: str, reply: Message) -> dict[str, Any]:
        header = reply.header
        record = {
            "kind": "site",
            "round": self.round,
            "site": site,
            **{key: header[key] for key, good in NOTED.items() if key in header and good(header[key])},
        }
        sent = {"pieces": self.models.of(site), **self.models.broadcast}
        record["bytes"] = {"up": self._bytes(reply.tensors), "down": self._bytes(sent)}
        return record

    def _bytes(self, tensors: Mapping[str, Pieces]) -> dict[str, int]:
        sizes = {group: total_bytes(pieces) for group, pieces in tensors.items() if group != "pieces"}
        for role in (Role.GLOBAL, Role.MIXED):
            if pieces := self._of_role(tensors.get("pieces", {}), role):
                sizes[role.value] = total_bytes(pieces)
        return sizes

    def _of_role(self, pieces: Pieces, role: Role) -> Pieces:
        return {name: pieces[name] for name in self.partition.with_roles(role) if name in pieces}

    def _styles(self) -> list | None:
        styles = [self.profiles[site].style for site in self.sites]
        return styles if all(styles) else None

    def _message(
        self, site: str, header: dict[str, Any], tensors: Mapping[str, Pieces] | None = None
    ) -> Message:
        common = {
            "job": self.job.to_json(),
            "run": self.folder.name,
            "round": self.round,
            "index": self.sites.index(site),
            "sites": len(self.sites),
        }
        return Message(
            common | header, {group: pieces for group, pieces in (tensors or {}).items() if pieces}
        )


def open_run(job: Job, root: Path, *, resume: bool) -> Path:
    """Return the folder of the newest run to resume; without one, or without ``resume``, of a new run.

    A resumed job may change ``rounds`` and how long it waits for whom, and nothing else. ``latest`` beside
    the runs names the one whose sites enrolled last.

    Raises:
        FederationError: The newest run was of another job.
    """
    jobs = root / job.name
    newest = newest_run(jobs) if resume else None
    if newest is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        number = 0
        while (folder := jobs / (f"{stamp}-{number}" if number else stamp)).exists():
            number += 1
        folder.mkdir(parents=True)
        return folder
    before = json.loads((newest / "run.json").read_text())["job"]
    now = json.loads(json.dumps(job.to_json()))
    may_change = {"rounds", "min_sites", "grace_seconds", "longest_wait_seconds"}
    if changed := [key for key in now if key not in may_change and now[key] != before.get(key)]:
        raise FederationError(
            f"{newest} ran with other settings of {', '.join(changed)}; "
            "put them back to resume, or unset SURGFL_RESUME to start a new run"
        )
    return newest


def _point_latest_to(folder: Path) -> None:
    """Let ``latest`` beside the run name it, for people and scripts."""
    beside = folder.with_name(f".latest.{os.getpid()}")
    beside.symlink_to(folder.name)
    os.replace(beside, folder.with_name("latest"))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_number, value.values()))


def _scores(value: Any) -> bool:
    """Accept ``evaluation.quick``'s form: Dice is a number or None per class, the rest is plain."""
    if not isinstance(value, Mapping) or not isinstance(value.get("dice", {}), Mapping):
        return False
    return all(v is None or _number(v) for v in value.get("dice", {}).values()) and _plain(value)


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


NOTED: dict[str, Callable[[Any], bool]] = {
    "samples": _number,
    "loss": _numbers,
    "metrics": _scores,
    "seconds": _numbers,
    "memory_mb": lambda value: value is None or _number(value),
}
"""What a site's reply says in its header for the record, and the form of each."""


def _profile(site: str, header: Mapping[str, Any]) -> Profile:
    style = header.get("style")
    return Profile(
        site=site,
        samples=header["samples"],
        classes=tuple(header["classes"]),
        style=(tuple(style[0]), tuple(style[1])) if style else None,
        text=header.get("text", ""),
    )


def _profile_header(profile: Profile) -> dict[str, Any]:
    return {
        "samples": profile.samples,
        "classes": list(profile.classes),
        "style": [list(part) for part in profile.style] if profile.style else None,
        "text": profile.text,
    }


def _check_equal(what: str, values: Mapping[str, Any], where: str) -> None:
    first_site, first = next(iter(values.items()))
    for site, value in values.items():
        if value != first:
            shown = f" ({_short(first)} and {_short(value)})"
            raise FederationError(
                f"{first_site} and {site} differ in their {what}{shown}; make {where} agree"
            )


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else f"{len(value)} pieces"
    return text if len(text) < 120 else f"{text[:117]}..."


def _check_equal_to_before(before: Mapping[str, Profile], now: Mapping[str, Profile]) -> None:
    for site, profile in before.items():
        if now[site].samples != profile.samples or now[site].classes != profile.classes:
            raise FederationError(
                f"{site} has other data than when the run began ({now[site].samples} training frames now, "
                f"{profile.samples} then); restore it to resume, or start a new run"
            )


def _check_pieces(what: str, pieces: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    if missing := [name for name in expected if name not in pieces]:
        raise RejectedUpdate(f"{len(missing)} of its {what}s are missing, the first is {missing[0]}")
    if extra := [name for name in pieces if name not in expected]:
        raise RejectedUpdate(f"it has {what}s that nobody asked for, the first is {extra[0]}")
    for name, place in expected.items():
        value = pieces[name]
        if value.shape != place.shape or value.dtype != place.dtype:
            raise RejectedUpdate(
                f"{what} {name} is {value.dtype} {tuple(value.shape)}; it should be {place.dtype} {tuple(place.shape)}"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise RejectedUpdate(f"{what} {name} has values that are not finite")


def _squared(value: Tensor) -> float:
    return float(value.square().sum())
