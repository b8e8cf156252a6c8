"""Collect the answers of sites to one task, at the server or at a region's node."""

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from shared_components.common.sanitise import one_line
from shared_components.federation.messages import Message, RejectedUpdate, Reply, total_bytes
from shared_components.federation.messages.parse import parse_reply
from shared_components.federation.messages.stored import HELD
from shared_components.federation.protocol import Ask
from shared_components.flare import wire
from shared_components.flare.timeouts import Timeouts

T = TypeVar("T")


class Exchange:
    """Answers of some sites to one task, collected by FLARE's threads and read by the party that asks."""

    def __init__(self, sites: Iterable[str], timeouts: Timeouts) -> None:
        self.replies: dict[str, Reply] = {}
        self.failures: dict[str, str] = {}
        self.late: list[str] = []  # sites that count as absent and may still work on the task
        self._pending = set(sites)
        self._lock = threading.Lock()
        self.useful = 0  # replies that count as sufficient, set by the reader
        self.timeouts = timeouts
        self.announced: set[str] = set()  # lost sites that the region's node knows

    @property
    def pending(self) -> list[str]:
        """Sites that have not answered, sorted."""
        with self._lock:
            return sorted(self._pending)

    def reply(self, site: str, reply: Reply) -> bool:
        """Accept a site's answer if it is the first and not too late; return whether it was accepted."""
        return self._settle(site, self.replies, reply)

    def fail(self, site: str, reason: str) -> bool:
        """Record why a site has no answer, unless it has an answer; return whether the reason was recorded."""
        return self._settle(site, self.failures, reason.removeprefix(f"site {site}: "))

    def hand_over(self) -> dict[str, Reply]:
        """Return the replies and drop them here: FLARE's tasks, which refer to this object, outlive their round."""
        with self._lock:
            replies, self.replies = self.replies, {}
        return replies

    def close(self, reason: str) -> None:
        """Count every site without an answer as absent; later answers do not count."""
        self.late += [site for site in self.pending if self.fail(site, reason)]

    def expire(self, now: float) -> None:
        """Close the exchange if a timeout has passed."""
        if reason := self.timeouts.why_expired(self.useful, now):
            self.close(reason)

    def _settle(self, site: str, into: dict, value: object) -> bool:
        with self._lock:
            if site not in self._pending:
                return False
            into[site] = value
            self._pending.discard(site)
            return True


def is_large(ask: Ask) -> bool:
    """Return whether the answers to a task, which are about as large as its messages, should wait in files."""
    sent = sum(total_bytes(message.pieces) for message in ask.messages.values())
    return ask.task in ("round", "finish") and sent > HELD


def read_reply(result: Shareable, task: str) -> Reply | str:
    """Return a site's parsed reply, or the reason why there is none."""
    return read_answer(result, lambda message: parse_reply(task, message))


def read_answer(result: Shareable, parse: Callable[[Message], T]) -> T | str:
    """Return the parsed message of an answer, or the reason why there is none."""
    try:
        if refusal := result.get_header(wire.ERROR):
            return one_line(refusal) if isinstance(refusal, str) else "it refuses and gives no reason"
        code = result.get_return_code()
        if code != ReturnCode.OK:
            return f"FLARE reports {one_line(code, 80)}; the site's log has the reason"
        return parse(wire.from_wire(result))
    except RejectedUpdate as error:
        return str(error)
    except Exception as error:  # a malformed reply costs its site the round, and must not end this thread
        return f"its answer cannot be read: {type(error).__name__}: {one_line(error, 200)}"
