"""Collect one answer from each site: which have arrived, and which still count."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from shared_components.federation.messages import FederationError, Reply
from shared_components.flare.timeouts import Timeouts


class Stopped(FederationError):
    """FLARE has ended a job in production, for an administrator or since the server ends."""


class Exchange:
    """The answers to one task per site as they arrive; FLARE's threads write, the controller reads.

    Args:
        sites: Whom the tasks were sent to; other answers do not count.
        timeouts: How long they are waited for.
    """

    def __init__(self, sites: Iterable[str], timeouts: Timeouts) -> None:
        self.replies: dict[str, Reply] = {}
        self.failures: dict[str, str] = {}
        self.late: list[str] = []  # sites that were given up and may still be at work
        self._pending = set(sites)
        self._lock = threading.Lock()
        self.useful = 0  # how many replies count among those that are enough; who reads them says so
        self._timeouts = timeouts

    @property
    def pending(self) -> list[str]:
        """Sites that have not answered, sorted."""
        with self._lock:
            return sorted(self._pending)

    def reply(self, site: str, reply: Reply) -> bool:
        """Accept a site's answer if it is its first and not too late; return whether it was accepted."""
        return self._settle(site, self.replies, reply)

    def fail(self, site: str, reason: str) -> bool:
        """Note why a site has no answer, unless it has one; return whether it was noted."""
        return self._settle(site, self.failures, reason.removeprefix(f"site {site}: "))

    def hand_over(self) -> dict[str, Reply]:
        """Return the replies and drop them here: FLARE's tasks, which refer to this object, outlive their round."""
        with self._lock:
            replies, self.replies = self.replies, {}
        return replies

    def close(self, reason: str) -> None:
        """Count every site that has not answered as absent; later answers do not count."""
        self.late += [site for site in self.pending if self.fail(site, reason)]

    def expire(self, now: float) -> None:
        """Count the sites as absent that have taken too long."""
        if reason := self._timeouts.why_expired(self.useful, now):
            self.close(reason)

    def _settle(self, site: str, into: dict, value: object) -> bool:
        with self._lock:
            if site not in self._pending:
                return False
            into[site] = value
            self._pending.discard(site)
            return True
