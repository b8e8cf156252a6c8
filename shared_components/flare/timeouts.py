"""Timeouts of a task: how long the server waits for the answers of the sites."""

import math
from dataclasses import dataclass, field

from shared_components.federation.messages import Job


def flare_timeout(job: Job) -> int:
    """Return FLARE's own timeout of a task in seconds; `Timeouts` ends earlier, with a clearer message."""
    return math.ceil(job.longest_wait_seconds) + 10


@dataclass
class Timeouts:
    """Timeouts of one task, in seconds."""

    started: float  # clock time of the task's start
    needed: int  # sufficient number of replies
    grace: float  # time to wait for the other sites after sufficient replies: the job's grace_seconds
    longest: float  # maximum waiting time: the job's longest_wait_seconds
    _enough_since: float | None = field(default=None, init=False)

    def why_expired(self, useful: int, now: float) -> str:
        """Return why the server stops waiting, given the number of useful replies; empty if there is time."""
        if self._enough_since is None and useful >= self.needed:
            self._enough_since = now
        if self._enough_since is not None and now - self._enough_since > self.grace:
            return f"it had not answered {self.grace:g} s after enough others had (grace_seconds)"
        if now - self.started > self.longest:
            return f"it did not answer within {self.longest:g} s (longest_wait_seconds)"
        return ""
