"""The server's side of an upload: plain updates, updates by region, updates with noise, or secure sums."""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import asdict

from shared_components.common.counted import first_few
from shared_components.core.aggregators.mean import parameter_names, squared_norm
from shared_components.core.method import Method, Models, Update, site_order
from shared_components.core.partition import Pieces
from shared_components.federation.messages import FederationError, Job, Message, RejectedUpdate, Reply
from shared_components.federation.messages.parse import check_pieces
from shared_components.federation.messages.region import RegionalReply
from shared_components.federation.messages.schema import RECORDED
from shared_components.federation.messages.wire_format import unpack, unpack_change
from shared_components.federation.privacy.gaussian import UNIT, Privacy, epsilon, farthest, why_not_private
from shared_components.federation.secure_sums import job_section, masks
from shared_components.federation.secure_sums.fixed_point import FixedPoint, as_vector
from shared_components.federation.secure_sums.identity import Project
from shared_components.federation.secure_sums.keys import check_public
from shared_components.federation.server.region_means import combine_region, why_not_by_region
from shared_components.federation.server.update_checks import check_extras

SUM = "sum"  # site name of the single update that the aggregator gets from a secure sum


class Plain:
    """Updates as the sites trained them."""

    least = 1  # number of updates that this kind of upload needs in a round
    to_unmask = 0  # number of sites that must open their shares of a sum's masks

    def __init__(self, job: Job) -> None:
        self._job = job
        self._measured: tuple[Models, dict[int, float]] | None = None  # squared norms of a round's tensors, by id

    def check(self, method: Method, sites: Sequence[str]) -> None:
        """Refuse a method that does not work with this upload and the sites of a round, by FederationError."""

    def enrol(self, site: str, reply: Reply) -> None:
        """Store the upload's part of a site's enrolment."""

    def facts(self) -> dict[str, Any]:
        """Return fields for run.json."""
        return {}

    def begin(self, round: int, asked: Sequence[str], samples: Mapping[str, int]) -> dict[str, Any]:
        """Begin a round; return fields for the headers of its messages."""
        return {}

    def take(self, site: str, round: int, reply: Reply, models: Models, *, samples: int, method: Method) -> Update:
        """Return the update of a reply with a valid header; RejectedUpdate if it is malformed or moves too far.

        ``models`` are the server's, in float32.
        """
        wire, sent = self._job.wire, models.of(site)
        try:
            pieces = unpack_change(reply.pieces, sent, wire)
            extras = {group: cast(Pieces, unpack(tensors, wire)) for group, tensors in reply.groups.items()}
        except ValueError as error:
            raise RejectedUpdate(f"its {error}") from error
        check_pieces(
            pieces, sent, largest_change=self._job.largest_change, noise=self._noise(sent),
            norm_sent=self._norm_of(models, sent),
        )  # fmt: skip
        check_extras(extras, method.local.extras, models.shared, method=method.name)
        return Update(site, round, pieces, extras, samples)

    def _norm_of(self, models: Models, sent: Pieces) -> float:
        """Return the norm of a site's pieces of the models; each tensor is measured once per round."""
        if self._measured is None or self._measured[0] is not models:
            self._measured = models, {}
        squares = self._measured[1]
        for name in parameter_names(sent):
            if (number := id(sent[name])) not in squares:
                squares[number] = squared_norm(sent[name])
        return math.sqrt(sum(squares[id(sent[name])] for name in parameter_names(sent)))

    def _noise(self, sent: Pieces) -> float:
        """Return the distance that noise may add to an update's."""
        return 0.0

    def unmask_messages(self, headers: Mapping[str, dict[str, Any]]) -> dict[str, Message]:
        """Return messages that ask sites with a valid update, by header, to open their shares."""
        return {}

    def unmasked(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> None:
        """Store the opened shares."""

    def combine(self, updates: Collection[Update], shared: Pieces) -> Sequence[Update]:
        """Return the updates for the aggregator."""
        self._measured = None  # it refers to the models, and the server would keep two copies
        return list(updates)

    def about(self, updates: Sequence[Update], noisy: Mapping[str, int]) -> dict[str, Any]:
        """Return fields for the aggregation's record; ``noisy`` counts each site's noisy updates so far."""
        return {}

    def recorded_values(self, reply: Reply) -> dict[str, Any]:
        """Return fields for the record of a reply."""
        return {key: reply.header[key] for key in RECORDED if key in reply.header}


class Noisy(Plain):
    """Noisy updates; the record of a reply has only whether an update was sent."""

    def __init__(self, job: Job, privacy: Privacy) -> None:
        super().__init__(job)
        self._privacy = privacy

    def check(self, method: Method, sites: Sequence[str]) -> None:
        if refusal := why_not_private(method):
            raise FederationError(refusal)

    def facts(self) -> dict[str, Any]:
        return {"privacy": {**asdict(self._privacy), "unit": UNIT}}

    def _noise(self, sent: Pieces) -> float:
        return farthest(self._privacy, sum(value.numel() for value in sent.values()))

    def recorded_values(self, reply: Reply) -> dict[str, Any]:
        return {"noisy": bool(reply.pieces)}

    def about(self, updates: Sequence[Update], noisy: Mapping[str, int]) -> dict[str, Any]:
        """Return the epsilon of the site with the most updates; updates that never arrived are only in its ledger."""
        most = max(noisy.values(), default=0)
        return {"epsilon": epsilon({self._privacy.noise_multiplier: most}, self._privacy.delta)}


class Masked(Plain):
    """Secure sums: forwards keys and sealed shares, adds masked vectors, removes the masks, and sees only the mean.

    Nothing is saved: after a restart a round begins again. ``project`` is the root certificate of the server's startup
    kit, which verifies the sites' keys; None without a kit.
    """

    def __init__(self, job: Job, run: str, project: Project | None) -> None:
        super().__init__(job)
        assert job.sums is not None
        self._settings = job.sums
        self.least = self.to_unmask = job.sums.threshold
        self._run, self._project = f"{job.name}/{run}", project
        self._keys: dict[str, dict[str, str]] = {}
        self._total = 0  # samples of all sites of the run
        self._attempt: masks.Attempt  # of the current round, see `begin`
        self._masked: dict[str, masks.Masked] = {}
        self._opened: dict[str, dict[str, list[bytes]]] = {}
        self._failures: dict[str, str] = {}

    def check(self, method: Method, sites: Sequence[str]) -> None:
        try:
            job_section.check_method(method)
            masks.check_threshold(self.to_unmask, len(sites))
        except ValueError as error:
            raise FederationError(str(error)) from error

    def enrol(self, site: str, reply: Reply) -> None:
        """Store a site's public key; FederationError if the sites would refuse it."""
        key = reply.header.get(job_section.KEY)
        if key is None:
            raise FederationError(f"{site} enrols without a key for secure sums; use one version of surgfl everywhere")
        if any(key["key"] == other["key"] for name, other in self._keys.items() if name != site):
            raise FederationError(f"{site} enrols with another site's key for secure sums; start it with its own")
        try:
            check_public(bytes.fromhex(key["key"]))
            if self._project:
                self._project.check(site, self._run.encode(), key)
        except ValueError as error:
            raise FederationError(f"{site} enrols with an invalid key for secure sums: {error}") from error
        self._keys[site] = key

    def begin(self, round: int, asked: Sequence[str], samples: Mapping[str, int]) -> dict[str, Any]:
        """Begin an attempt at a round; the message has the keys of all sites of the run."""
        try:
            self._attempt = masks.Attempt(self._run, round, os.urandom(16).hex(), tuple(asked), self.to_unmask)
        except ValueError as error:
            raise FederationError(str(error)) from error
        self._total = sum(samples.values())
        self._masked, self._opened, self._failures = {}, {}, {}
        keys = {site: self._keys[site] for site in samples}
        section = {"nonce": self._attempt.nonce, "sites": list(asked), "total": self._total, "keys": keys}
        return {job_section.HEADER: section}

    def take(self, site: str, round: int, reply: Reply, models: Models, *, samples: int, method: Method) -> Update:
        """Store a site's masked vector, shares and hashes; RejectedUpdate if they are incomplete or malformed."""
        sites, groups = self._attempt.sites, reply.groups
        try:
            if reply.pieces:
                raise ValueError("it sends pieces beside a secure sum")
            job_section.check_masked(groups, models.shared, sites, masks.sealed_bytes(len(sites)))
        except ValueError as error:
            raise RejectedUpdate(str(error)) from error
        shares, hashes = (job_section.bytes_of(groups[name]) for name in (job_section.SHARES, job_section.HASHES))
        self._masked[site] = masks.Masked(as_vector(groups[job_section.MASKED]), shares, hashes)
        return Update(site, round, {}, samples=samples)

    def unmask_messages(self, headers: Mapping[str, dict[str, Any]]) -> dict[str, Message]:
        section = {job_section.HEADER: {"nonce": self._attempt.nonce, "sites": list(self._masked)}}
        messages = {}
        for site, header in headers.items():
            sealed = job_section.as_tensors({sender: sent.shares[site] for sender, sent in self._masked.items()})
            messages[site] = Message(header | section, {}, {job_section.SHARES: sealed})
        return messages

    def unmasked(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> None:
        """Store the opened shares; an incomplete or malformed reply counts as none."""
        self._failures = dict(failures)
        absent = len(self._attempt.sites) - len(self._masked)
        for site, reply in replies.items():
            try:
                if reply.pieces or set(reply.groups) != {job_section.OPENED}:
                    raise ValueError(f"it carries the groups {sorted(reply.groups)}; 'opened' is due")
                content = reply.groups[job_section.OPENED]
                job_section.check_bytes(job_section.OPENED, content, list(self._masked), (1 + absent, masks.SHARE))
                self._opened[site] = {name: [job_section.as_bytes(r) for r in rows] for name, rows in content.items()}
            except ValueError as error:
                self._failures[site] = str(error)

    def combine(self, updates: Collection[Update], shared: Pieces) -> Sequence[Update]:
        """Return one update, the mean weighted by samples, checked like the update of a single site."""
        round, samples = self._attempt.round, sum(update.samples for update in updates)
        try:
            total = masks.take_off(self._attempt, self._masked, self._opened)
        except ValueError as error:
            reasons = first_few([str(error), *(f"{site}: {reason}" for site, reason in self._failures.items())], "; ")
            raise FederationError(f"round {round + 1} has no secure sum: {reasons}") from error
        pieces = FixedPoint(self._total, self._settings.fraction_bits).decode(total, samples, shared)
        try:
            check_pieces(pieces, shared, largest_change=self._job.largest_change)
        except RejectedUpdate as error:
            sites = first_few(update.site for update in updates)
            problem = f"the secure sum of round {round + 1} cannot be used, and does not show which site is wrong"
            raise FederationError(f"{problem}: {error}; ask {sites}") from error
        return [Update(SUM, round, pieces, samples=samples)]

    def about(self, updates: Sequence[Update], noisy: Mapping[str, int]) -> dict[str, Any]:
        return {"secure_sum": [update.site for update in updates]}


class ByRegion(Plain):
    """Plain updates, combined by region before the aggregator."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._region_of = {site: region for region, sites in job.regions.items() for site in sites}
        self._replies: dict[str, RegionalReply] = {}  # of this round, one of each region's node

    def check(self, method: Method, sites: Sequence[str]) -> None:
        if refusal := why_not_by_region(method):
            raise FederationError(refusal)
        if missing := [site for site in sites if site not in self._region_of]:
            names = first_few(missing)
            raise FederationError(f"job {self._job.name}: regions leave out {names}; put every site into a region")

    def take(self, site: str, round: int, reply: Reply, models: Models, *, samples: int, method: Method) -> Update:
        if not isinstance(reply, RegionalReply):
            return super().take(site, round, reply, models, samples=samples, method=method)
        if reply.rejected:
            raise RejectedUpdate(reply.rejected)
        self._replies[reply.region] = reply
        return Update(site, round, {}, samples=samples)

    def combine(self, updates: Collection[Update], shared: Pieces) -> Sequence[Update]:
        """Return one update for each region with a valid update, in region order."""
        replies, self._replies = self._replies, {}
        members: dict[str, list[Update]] = {}
        for update in super().combine(updates, shared):
            members.setdefault(self._region_of[update.site], []).append(update)
        return [combine_region(region, members[region], shared, replies.get(region)) for region in site_order(members)]


def upload_of(job: Job, run: str, project: Project | None = None) -> Plain:
    """Return the upload of a job's run; ``project`` verifies the keys of secure sums."""
    if job.noise:
        return Noisy(job, job.noise)
    if job.regions:
        return ByRegion(job)
    return Masked(job, run, project) if job.secure_sums else Plain(job)
