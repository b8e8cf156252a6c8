"""A site's plain upload, and the hooks that uploads with noise or secure sums override."""

from typing import Any

from shared_components.core.method import Extras, Method
from shared_components.core.partition import Pieces
from shared_components.federation.messages import Job, Message, Request, SiteRefusal
from shared_components.federation.messages.wire_format import pack, pack_change
from shared_components.federation.setup.site_setup import SiteSetup
from shared_components.federation.site.agreed_job import Sender


class Plain:
    """The update as trained."""

    def __init__(self, job: Job, sender: Sender) -> None:
        self._job, self._sender = job, sender

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
        raise SiteRefusal(f"site {self._sender.name}: the job has no secure sums to open")

    def strip(self, reply: Message) -> Message:
        """Remove everything from a reply that must stay at the site."""
        return reply
