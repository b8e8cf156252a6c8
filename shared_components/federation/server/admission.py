"""Decide who takes part in a run: what must hold before any site is asked, and which sites are left out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared_components.common.counted import counted
from shared_components.common.sanitise import one_line
from shared_components.core.method import Method, Profile
from shared_components.federation.messages import FederationError, Job, Message
from shared_components.federation.server.enrolment import Enrolment, EnrolmentReader, disagreeing, outlying_counts
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
        self._method, self._least, self._upload = method, least, upload
        self._reader = EnrolmentReader(job, method, file=file)

    @property
    def profiles(self) -> dict[str, Profile]:
        """The profiles of those that take part, in order."""
        return {site: self.found[site].profile for site in self.sites if site in self.found}

    def take(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
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

    def _leave_out(self, site: str, sentence: str) -> None:
        self.found.pop(site, None)
        self.left_out.setdefault(site, one_line(sentence))
