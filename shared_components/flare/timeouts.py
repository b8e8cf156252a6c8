"""Timeouts of a task: how long the server waits for the answers of the sites."""

import math
from dataclasses import dataclass, field

from shared_components.federation.messages import Job

FLARE_WAITS_LONGER = 10  # seconds: the controller's own timeout, whose sentence is clearer, comes first


def flare_timeout(job: Job) -> int:
    """Return FLARE's own timeout of a task in seconds, which is longer than ``longest_wait_seconds``."""
    return math.ceil(job.longest_wait_seconds) + FLARE_WAITS_LONGER


@dataclass
class Timeouts:
    """The timeouts of one task.

    Attributes:
        started: The clock's reading at the start, seconds.
        needed: The number of replies that is enough.
        grace: Seconds to wait for the others once there are enough; the job's ``grace_seconds``.
        longest: Seconds to wait at most; the job's ``longest_wait_seconds``.
    """

    started: float
    needed: int
    grace: float
    longest: float
    _enough_since: float | None = field(default=None, init=False)

    def why_expired(self, useful: int, now: float) -> str:
        """Return why no answer is waited for any more, given the number of useful replies; empty if there is time."""
        if self._enough_since is None and useful >= self.needed:
            self._enough_since = now
        if self._enough_since is not None and now - self._enough_since > self.grace:
            return f"it had not answered {self.grace:g} s after enough others had (grace_seconds)"
        if now - self.started > self.longest:
            return f"it did not answer within {self.longest:g} s (longest_wait_seconds)"
        return ""
