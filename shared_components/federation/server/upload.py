"""The server's side of an upload: updates as they are (plain), with noise (noisy), or a sum of masked ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

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
        least: Number of updates that the upload alone demands of a round.
        to_unmask: Number of sites that must open their shares of a sum's masks.
    """

    least = 1
    to_unmask = 0

    def __init__(self, job: Job) -> None:
        self._job = job

    def check(self, method: Method, asked: int) -> None:
        """Refuse a method that cannot be uploaded so, with ``asked`` sites in a round; FederationError says why."""

    def enrol(self, site: str, reply: Message) -> None:
        """Store what the upload needs of a site's enrolment."""

    def facts(self) -> dict[str, Any]:
        """Return fields for run.json."""
        return {}

    def begin(self, round: int, asked: Sequence[str], samples: Mapping[str, int]) -> dict[str, Any]:
        """Begin a round; return fields for the headers of its messages."""
        return {}

    def take(
        self, site: str, round: int, reply: Message, sent: Pieces, shared: Pieces, *, samples: int, method: Method
    ) -> Update:
        """Turn a reply whose header is checked into an update.

        Args:
            site: Its name.
            round: From 0.
            reply: To the round's message.
            sent: The pieces of that message.
            shared: The GLOBAL ones among them.
            samples: From the reply's header.
            method: Of the job.

        Raises:
            RejectedUpdate: It is misshapen, not finite or too large.
        """
        check_pieces(reply.pieces, sent, largest_change=self._job.largest_change, noise=self._noise(sent))
        check_extras(reply.groups, method.local.extras, shared, method=method.name)
        return Update(site, round, reply.pieces, reply.groups, samples)

    def _noise(self, sent: Pieces) -> float:
        """Return how much further than ``largest_change`` noise may move an update."""
        return 0.0

    def unmask_messages(self, headers: Mapping[str, dict[str, Any]]) -> dict[str, Message]:
        """Return messages that ask the sites of these headers, whose updates are valid, to open their sum."""
        return {}

    def unmasked(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
        """Store the shares that the sites have opened."""

    def combine(self, updates: Collection[Update], shared: Pieces) -> Sequence[Update]:
        """Return the updates for the aggregator."""
        return list(updates)

    def about(self, updates: Sequence[Update]) -> dict[str, Any]:
        """Return fields for the aggregation's record."""
        return {}

    def noted(self, reply: Message) -> dict[str, Any]:
        """Return fields for the record of a reply."""
        return noted(reply.header)

    def spent(self, records: Collection[Mapping[str, Any]]) -> dict[str, Any]:
        """Return fields for the aggregation's record on the privacy spent according to earlier records."""
        return {}


class Noisy(Plain):
    """Noisy updates: records have nothing that a site measures, but whether it has sent an update."""

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
        """Return the epsilon of the site with the most updates; only its ledger has those that never arrived."""
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
    """Return the upload of a job's run; ``project`` is the startup kit that vouches for keys of secure sums."""
    if job.noise:
        return Noisy(job, job.noise)
    return Masked(job, run, project) if job.secure_sums else Plain(job)
