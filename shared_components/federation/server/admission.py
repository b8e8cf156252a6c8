"""Decide who takes part in a run: what must hold before any site is asked, and which sites are left out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_components.common.counted import counted
from shared_components.common.sanitise import one_line
from shared_components.core.method import Method, Profile
from shared_components.federation.messages import FederationError, Job, Reply
from shared_components.federation.server.enrolment import (
    Enrolment,
    EnrolmentReader,
    disagreeing,
    initial_models,
    outlying_counts,
)
from shared_components.federation.server.published_models import task_of
from shared_components.federation.server.state import ServerState
from shared_components.federation.server.upload import Plain

logger = logging.getLogger(__name__)


def check_possible(job: Job, method: Method, sites: Sequence[str]) -> None:
    """Refuse a job that needs more sites than there are, or whose method needs more rounds, by FederationError."""
    if job.rounds < method.requires.min_rounds:
        raise FederationError(
            f"{job.method} needs at least {counted(method.requires.min_rounds, 'round')} with these arguments, and the "
            f"job has {job.rounds}; change 'rounds' or the arguments"
        )
    if job.min_sites > len(sites):
        raise FederationError(
            f"job {job.name}: min_sites is {job.min_sites}, and the job has {counted(len(sites), 'site')}; add sites, "
            "or give a smaller min_sites"
        )
    if len(sites) < method.requires.min_sites:
        raise FederationError(
            f"{job.method} needs at least {counted(method.requires.min_sites, 'site')} with these arguments, "
            f"and there are {len(sites)}; add sites or choose another method"
        )


class Admission:
    """Collects the sites' answers to `enrol` and leaves out the sites that do not fit.

    ``sites`` are asked, in order; ``least`` of them the first round needs. ``file`` is what a ``start: file`` begins
    from on this machine, if there is one.
    """

    def __init__(
        self, job: Job, method: Method, sites: Sequence[str], *, least: int, file: Path | None = None, upload: Plain
    ) -> None:
        self.sites = list(sites)  # that take part, of those that have answered
        self.left_out: dict[str, str] = {}  # the others, and why
        self.found: dict[str, Enrolment] = {}
        self.givers: set[str] = set()  # sites that are asked for their weights
        self._job, self._method, self._least, self._upload = job, method, least, upload
        self._reader = EnrolmentReader(job, method, file=file)

    @property
    def profiles(self) -> dict[str, Profile]:
        """The profiles of those that take part, in order."""
        return {site: self.found[site].profile for site in self.sites if site in self.found}

    def take(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> None:
        """Take parsed answers, or why there is none, and leave out the sites that do not fit.

        Raises:
            FederationError: Too few sites are left, with the sentence about each that is not; or sites differ without
                a majority.
        """
        for site, reply in replies.items():
            try:
                found = self._reader.read(site, reply, asked=site in self.givers)
                self._upload.enrol(site, reply)
                self.found[site] = found
            except FederationError as error:
                self._leave_out(site, str(error))
        for site in [site for site in self.sites if site not in self.found]:
            reason = f"{site}: {failures[site]}" if site in failures else f"{site} did not enrol"
            self._leave_out(site, reason)
        for site, sentence in outlying_counts(self.profiles).items():
            self._leave_out(site, sentence)
        for site, sentence in disagreeing(self._method, self.found).items():
            self._leave_out(site, sentence)
        stay = [site for site in self.sites if site not in self.left_out]
        if len(stay) < self._least:
            raise FederationError(f"{'; '.join(self.left_out.values())}; no round was started")
        for sentence in (self.left_out[site] for site in self.sites if site in self.left_out):
            logger.warning("%s; the run begins without it", sentence)
        self.sites = stay

    def begin(self, state: ServerState) -> dict[str, Any]:
        """Set the state of a new run: profiles, partition, models, the aggregator's state; return facts for run.json.

        Raises:
            FederationError: The aggregator cannot begin with these sites.
        """
        method, first = self._method, self.found[self.sites[0]]
        state.profiles, state.partition = self.profiles, first.partition
        given = {site: self.found[site].pieces for site in self.sites}
        state.models = initial_models(method, state.partition, self.sites, given)
        try:
            profiles = list(state.profiles.values())
            state.aggregator = method.server.aggregator.init(state.partition, state.models, profiles)
        except ValueError as error:
            raise FederationError(f"{method.name}: {error}") from error
        cards = {site: profile.card for site, profile in state.profiles.items()}
        metrics = {card.kind: task_of(self._job, card).metrics for card in cards.values()}
        return {
            "cards": {site: card.to_json() for site, card in cards.items()},
            "metrics": {kind: [metric.to_json() for metric in rows] for kind, rows in metrics.items()},
            "start": first.profile.start,
            **({"left_out": self.left_out} if self.left_out else {}),
            **self._upload.facts(),
        }

    def _leave_out(self, site: str, sentence: str) -> None:
        self.found.pop(site, None)
        self.left_out.setdefault(site, one_line(sentence))
