"""A site's side of an upload: a plain update, an update with noise, or a masked update."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from shared_components.core.method import Extras, Method
from shared_components.core.partition import Pieces, Role, cut
from shared_components.data.site import Site
from shared_components.federation.messages import Job, Message, Request, SiteRefusal
from shared_components.federation.messages.parse import check_pieces
from shared_components.federation.messages.wire_format import pack, pack_change
from shared_components.federation.secure_sums.job_section import KEY, check_method
from shared_components.federation.setup.site_setup import SiteSetup
from shared_components.federation.site.agreed_job import Sender
from shared_components.federation.site.noisy_updates import Release, strip_to_noisy, variances
from shared_components.federation.site.secure_sums import SiteSums


class Plain:
    """The update as trained."""

    def __init__(self, job: Job, site: str) -> None:
        self._job, self._site = job, site

    def check(self, method: Method, rounds: int) -> None:
        """Refuse a method that does not work with this upload, or more rounds than the site allows, at enrolment."""

    def enrolment(self) -> dict[str, Any]:
        """Return fields for the header of the enrolment."""
        return {}

    def before_round(self, request: Request) -> Message | None:
        """Check and record a round's request; return the earlier reply to the same request, or None."""
        return None

    def before_training(self, setup: SiteSetup) -> None:
        """Record the network before training."""

    def update(self, request: Request, header: dict[str, Any], pieces: Pieces, extras: Extras) -> Message:
        """Return the reply to a round's request; ``pieces`` are the trained GLOBAL and MIXED pieces."""
        sent = pack_change(pieces, request.pieces, self._job.wire)
        return Message(header, sent, {group: pack(tensors, self._job.wire) for group, tensors in extras.items()})

    def unmask(self, request: Request) -> Message:
        """Open the shares that remove the masks from a round's sum."""
        raise SiteRefusal(f"site {self._site}: the job has no secure sums to open")

    def strip(self, reply: Message) -> Message:
        """Remove everything from a reply that must stay at the site."""
        return reply


class Noisy(Plain):
    """One noisy update per request, entered in the site's ledger; nothing else that depends on the data leaves."""

    def __init__(self, job: Job, site: str, release: Release) -> None:
        super().__init__(job, site)
        self._release = release
        self._began: Pieces = {}
        self._variances: set[str] = set()

    def check(self, method: Method, rounds: int) -> None:
        self._release.refuse_beyond_budget(rounds)

    def before_round(self, request: Request) -> Message | None:
        sent = self._release.sent_before(request)
        return None if sent is None else Message({"samples": 0}, sent)

    def before_training(self, setup: SiteSetup) -> None:
        self._began = cut(setup.network.state_dict(), setup.partition, Role.GLOBAL, Role.MIXED)
        self._variances = variances(setup.network, setup.partition)

    def update(self, request: Request, header: dict[str, Any], pieces: Pieces, extras: Extras) -> Message:
        noisy = self._release.noisy(request, self._began, pieces, variances=self._variances)
        return Message(header, noisy, dict(extras))

    def strip(self, reply: Message) -> Message:
        return strip_to_noisy(reply)


class Masked(Plain):
    """The update under masks that cancel only in the sum of several sites."""

    def __init__(self, job: Job, sender: Sender) -> None:
        super().__init__(job, sender.name)
        self._sender = sender

    @cached_property
    def _sums(self) -> SiteSums:
        return SiteSums(self._job, self._sender)  # late: reads a file, and refuses a damaged one

    def check(self, method: Method, rounds: int) -> None:
        check_method(method)

    def enrolment(self) -> dict[str, Any]:
        return {KEY: self._sums.public_key()}

    def before_round(self, request: Request) -> Message | None:
        self._sums.begin(request)
        return None

    def update(self, request: Request, header: dict[str, Any], pieces: Pieces, extras: Extras) -> Message:
        # the server cannot see the update, so the site makes the server's check
        check_pieces(pieces, request.pieces, largest_change=self._job.largest_change)
        return Message(header, {}, self._sums.mask(request, pieces, header["samples"]))

    def unmask(self, request: Request) -> Message:
        return Message({}, {}, self._sums.open(request))


def upload_of(job: Job, site: Site, sender: Sender) -> Plain:
    """Return the upload of a site in a run."""
    if job.noise:
        return Noisy(job, sender.name, Release(job.noise, job, site, sender))
    return Masked(job, sender) if job.secure_sums else Plain(job, sender.name)
