"""What the server takes from sites: updates as they are (plain), with noise (noisy), or the sum of masked ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shared_components.core.method import Method, Update
from shared_components.core.partition import Pieces
from shared_components.federation.messages import FederationError, Job, Message
from shared_components.federation.privacy.gaussian import UNIT, Privacy, epsilon, farthest
from shared_components.federation.privacy.noisy_updates import why_not_private
from shared_components.federation.secure_sums.identity import Project
from shared_components.federation.secure_sums.job_section import HEADER, check_asked, check_method
from shared_components.federation.server.secure_sums import ServerSums
from shared_components.federation.server.update_checks import check_extras, check_pieces, noted


class Plain:
    """Updates as they are.

    Attributes:
        least: Updates that a round needs for this alone.
        to_unmask: Sites that must open their shares of a sum's masks.
    """

    least = 1
    to_unmask = 0

    def __init__(self, job: Job) -> None:
        self._job = job

    def check(self, method: Method, asked: int) -> None:
        """Refuse a method that cannot be uploaded so.

        Args:
            method: The job's.
            asked: How many sites a round asks.

        Raises:
            FederationError: One sentence.
        """

    def enrol(self, site: str, reply: Message) -> None:
        """Take what a site enrols with for this."""

    def facts(self) -> dict[str, Any]:
        """Return what the run's description says of it."""
        return {}

    def begin(self, round: int, asked: Sequence[str], samples: Mapping[str, int]) -> dict[str, Any]:
        """Return what the messages of a round say besides."""
        return {}

    def take(
        self, site: str, round: int, reply: Message, sent: Pieces, shared: Pieces, *, samples: int, method: Method
    ) -> Update:
        """Turn a reply whose header is good into an update.

        Args:
            site: Whose.
            round: From 0 on.
            reply: It.
            sent: The pieces that it answers.
            shared: The GLOBAL ones among them.
            samples: How many it reports.
            method: The job's.

        Raises:
            RejectedUpdate: It is misshapen, not finite or too large.
        """
        check_pieces(reply.pieces, sent, largest_change=self._job.largest_change, noise=self._noise(sent))
        check_extras(reply.groups, method.local.extras, shared, method=method.name)
        return Update(site, round, reply.pieces, reply.groups, samples)

    def _noise(self, sent: Pieces) -> float:
        return 0.0

    def unmask_messages(self, headers: Mapping[str, dict[str, Any]]) -> dict[str, Message]:
        """Ask the sites with valid updates, each with its own header, to open the sum."""
        return {}

    def unmasked(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
        """Take what the sites have opened."""

    def combine(self, updates: Collection[Update], shared: Pieces) -> Sequence[Update]:
        """Return the updates that the aggregator sees."""
        return list(updates)

    def about(self, updates: Sequence[Update]) -> dict[str, Any]:
        """Return what the record of an aggregation says of it."""
        return {}

    def noted(self, reply: Message) -> dict[str, Any]:
        """Return what of a reply is written down."""
        return noted(reply.header)

    def spent(self, records: Collection[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the records say has been spent of the sites' privacy."""
        return {}


class Noisy(Plain):
    """Noisy updates; nothing that the sites measure is written down, and how often each has answered instead."""

    def __init__(self, job: Job, privacy: Privacy) -> None:
        super().__init__(job)
        self._privacy = privacy

    def check(self, method: Method, asked: int) -> None:
        if refusal := why_not_private(method):
            raise FederationError(refusal)

    def facts(self) -> dict[str, Any]:
        return {"privacy": {**asdict(self._privacy), "unit": UNIT}}

    def _noise(self, sent: Pieces) -> float:
        return farthest(self._privacy, sum(value.numel() for value in sent.values()))

    def noted(self, reply: Message) -> dict[str, Any]:
        return {"noisy": bool(reply.pieces)}

    def spent(self, records: Collection[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the site has spent that has answered most often; what never arrived only its ledger knows."""
        most = max(Counter(r["site"] for r in records if r.get("noisy")).values(), default=0)
        return {"epsilon": epsilon({self._privacy.noise_multiplier: most}, self._privacy.delta)}


class Masked(Plain):
    """Masked updates, of which the server sees the weighted mean alone."""

    def __init__(self, job: Job, run: str, project: Project | None) -> None:
        super().__init__(job)
        self._sums = ServerSums(job, run, project)
        self.least = self.to_unmask = self._sums.threshold

    def check(self, method: Method, asked: int) -> None:
        try:
            check_method(self._job, method)
            check_asked(self._job, asked)
        except ValueError as error:
            raise FederationError(str(error)) from error

    def begin(self, round: int, asked: Sequence[str], samples: Mapping[str, int]) -> dict[str, Any]:
        return {HEADER: self._sums.begin(round, asked, samples)}

    def take(
        self, site: str, round: int, reply: Message, sent: Pieces, shared: Pieces, *, samples: int, method: Method
    ) -> Update:
        self._sums.take(site, reply, shared)
        return Update(site, round, {}, samples=samples)

    def enrol(self, site: str, reply: Message) -> None:
        self._sums.enrol(site, reply)

    def unmask_messages(self, headers: Mapping[str, dict[str, Any]]) -> dict[str, Message]:
        return self._sums.messages(headers)

    def unmasked(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
        self._sums.opened(replies, failures)

    def combine(self, updates: Collection[Update], shared: Pieces) -> Sequence[Update]:
        return [self._sums.mean(updates, shared)]

    def about(self, updates: Sequence[Update]) -> dict[str, Any]:
        return {"secure_sum": [update.site for update in updates]}


def upload_of(job: Job, run: str, project: Project | None = None) -> Plain:
    """Return how a job's sites upload.

    Args:
        job: What is run.
        run: The run's name.
        project: The server's startup kit, by which it knows the sites' keys of secure sums; None: there is none.
    """
    if job.noise:
        return Noisy(job, job.noise)
    return Masked(job, run, project) if job.secure_sums else Plain(job)
