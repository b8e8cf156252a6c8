"""The server's part in secure sums: forward keys and sealed shares, add masked vectors, remove the masks."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from shared_components.core.method import Update
from shared_components.core.partition import Pieces
from shared_components.federation.messages import FederationError, Job, Message
from shared_components.federation.secure_sums import job_section
from shared_components.federation.secure_sums.fixed_point import FixedPoint, as_vector
from shared_components.federation.secure_sums.identity import Project
from shared_components.federation.secure_sums.keys import check_public
from shared_components.federation.secure_sums.masks import Attempt, Masked, sealed_bytes, take_off
from shared_components.federation.secure_sums.shares import SHARE
from shared_components.federation.server.update_checks import RejectedUpdate, check_pieces

SUM = "sum"  # the name of the one update that the aggregator sees


class ServerSums:
    """One run's secure sums at the server; nothing outlives a restart, after which a round begins again.

    ``project`` is the server's startup kit, whose root vouches for the sites' keys; None without a kit.
    """

    def __init__(self, job: Job, run: str, project: Project | None = None) -> None:
        self._job, self._run, self._project = job, f"{job.name}/{run}", project
        self._keys: dict[str, dict[str, str]] = {}
        self._total = 0
        self._attempt: Attempt | None = None
        self._masked: dict[str, Masked] = {}
        self._opened: dict[str, dict[str, list[bytes]]] = {}
        self._failures: dict[str, str] = {}

    @property
    def threshold(self) -> int:
        """The least number of sites that are in a sum, and that open their shares."""
        return job_section.threshold_of(self._job)

    def enrol(self, site: str, reply: Message) -> None:
        """Store a site's public key.

        Raises:
            FederationError: It is missing, invalid, another site's, or not vouched for by the site's certificate: all
                sites would refuse it.
        """
        if job_section.KEY not in reply.header:
            raise FederationError(f"{site} enrols without a key for secure sums; use one version of surgfl everywhere")
        said = reply.header[job_section.KEY]
        if any(said["key"] == other["key"] for name, other in self._keys.items() if name != site):
            raise FederationError(f"{site} enrols with another site's key for secure sums; start it with its own")
        try:
            check_public(bytes.fromhex(said["key"]))
            if self._project:
                self._project.check(site, self._run.encode(), said)
        except ValueError as error:
            raise FederationError(
                f"{site} enrols with a key for secure sums that no site would take: {error}"
            ) from error
        self._keys[site] = said

    def begin(self, round: int, asked: Collection[str], samples: Mapping[str, int]) -> dict[str, Any]:
        """Begin an attempt at a round; return the section for the headers of its messages.

        Args:
            round: From 0.
            asked: The sites of the round, in order.
            samples: Of every site of the run, as enrolled; each site stores the list of these sites' keys.

        Raises:
            FederationError: The threshold does not fit the number of sites.
        """
        try:
            self._attempt = Attempt(self._run, round, os.urandom(16).hex(), tuple(asked), self.threshold)
        except ValueError as error:
            raise FederationError(str(error)) from error
        self._total = sum(samples.values())
        self._masked, self._opened, self._failures = {}, {}, {}
        keys = {site: self._keys[site] for site in samples}
        return {"nonce": self._attempt.nonce, "sites": list(asked), "total": self._total, "keys": keys}

    def take(self, site: str, reply: Message, shared: Pieces) -> None:
        """Store a site's masked vector, shares and hashes.

        Raises:
            RejectedUpdate: They are incomplete or misshapen.
        """
        attempt = self._current
        try:
            if reply.pieces:
                raise ValueError("it sends pieces beside a secure sum")
            job_section.check_masked(reply.groups, shared, attempt.sites, sealed_bytes(len(attempt.sites)))
        except ValueError as error:
            raise RejectedUpdate(str(error)) from error
        groups = {name: reply.groups[name] for name in (job_section.SHARES, job_section.HASHES)}
        shares, hashes = ({s: job_section.as_bytes(v) for s, v in group.items()} for group in groups.values())
        self._masked[site] = Masked(as_vector(reply.groups[job_section.MASKED]), shares, hashes)

    def messages(self, headers: Mapping[str, dict[str, Any]]) -> dict[str, Message]:
        """Return messages that ask the sites whose vectors are in the sum to open their shares of its masks."""
        found = {}
        for site, header in headers.items():
            sealed = job_section.as_tensors({sender: sent.shares[site] for sender, sent in self._masked.items()})
            said = {job_section.HEADER: {"nonce": self._current.nonce, "sites": list(self._masked)}}
            found[site] = Message(header | said, {}, {job_section.SHARES: sealed})
        return found

    def opened(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
        """Store the opened shares; an incomplete or misshapen reply counts as none."""
        self._failures = dict(failures)
        absent = len(self._current.sites) - len(self._masked)
        for site, reply in replies.items():
            try:
                if reply.pieces or set(reply.groups) != {job_section.OPENED}:
                    raise ValueError(f"it carries the groups {sorted(reply.groups)}; 'opened' is due")
                content = reply.groups[job_section.OPENED]
                job_section.check_bytes(job_section.OPENED, content, list(self._masked), (1 + absent, SHARE))
            except ValueError as error:
                self._failures[site] = str(error)
                continue
            self._opened[site] = {name: [job_section.as_bytes(row) for row in rows] for name, rows in content.items()}

    def mean(self, updates: Collection[Update], shared: Pieces) -> Update:
        """Return the mean of the round's updates, weighted by samples, checked like a single site's update.

        Raises:
            FederationError: Too few sites have opened their shares, some do not fit, or the mean is not valid.
        """
        round, samples = self._current.round, sum(update.samples for update in updates)
        try:
            total = take_off(self._current, self._masked, self._opened)
        except ValueError as error:
            reasons = "".join(f"; {site}: {reason}" for site, reason in self._failures.items())
            raise FederationError(f"round {round + 1} has no secure sum: {error}{reasons}") from error
        point = FixedPoint(self._total, job_section.fraction_bits_of(self._job))
        pieces = point.decode(total, samples, shared)
        try:
            check_pieces(pieces, shared, largest_change=self._job.largest_change)
        except RejectedUpdate as error:
            sites = ", ".join(update.site for update in updates)
            raise FederationError(
                f"the secure sum of round {round + 1} is of no use, and nobody can tell whose fault it is: "
                f"{error}; ask {sites}"
            ) from error
        return Update(SUM, round, pieces, samples=samples)

    @property
    def _current(self) -> Attempt:
        assert self._attempt is not None
        return self._attempt
