"""Timeouts of a task: how long the server waits for the answers of the sites."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

from shared_components.federation.messages import Job

ANSWER_SECONDS = 30.0  # for a region's node to answer after its own timeouts
REQUEST_SECONDS = 20.0  # behind a relay, for each stage of a request for a task: sending, waiting, receiving


def repeat_requests_soon(client: Any) -> None:
    """Let a job's process of a site repeat a request for a task whose answer was lost with a relay.

    FLARE's timeout of 5 minutes per stage stays the timeout of submissions: their answer waits for the tensors.
    """
    runner, communicator = client.client_runner, client.communicator
    runner.submit_task_result_timeout = runner.submit_task_result_timeout or communicator.timeout
    communicator.timeout = min(communicator.timeout, REQUEST_SECONDS)


@dataclass
class Timeouts:
    """Timeouts of one task, in seconds."""

    started: float  # clock time of the task's start
    needed: int  # sufficient number of replies
    grace: float  # time to wait for the other sites after sufficient replies: the job's grace_seconds
    longest: float  # maximum waiting time: the job's longest_wait_seconds
    _enough_since: float | None = field(default=None, init=False)

    @property
    def flare(self) -> int:
        """FLARE's own timeout of the task in seconds; `why_expired` ends it earlier, with a clearer message."""
        return math.ceil(self.longest) + 10

    def why_expired(self, useful: int, now: float) -> str:
        """Return why the server stops waiting, given the number of useful replies; empty if there is time."""
        if self._enough_since is None and useful >= self.needed:
            self._enough_since = now
        if self._enough_since is not None and now - self._enough_since > self.grace:
            return f"it had not answered {self.grace:g} s after enough others had (grace_seconds)"
        if now - self.started > self.longest:
            return f"it did not answer within {self.longest:g} s (longest_wait_seconds)"
        return ""


def timeouts_of(job: Job, needed: int, *, regions: bool = False) -> Timeouts:
    """Return the timeouts of a task that begins now; a server with regions first lets the timeouts of nodes pass."""
    more = ANSWER_SECONDS if regions else 0.0
    grace = job.grace_seconds + (job.grace_seconds + more if regions else 0.0)
    return Timeouts(time.monotonic(), needed, grace, job.longest_wait_seconds + more)
