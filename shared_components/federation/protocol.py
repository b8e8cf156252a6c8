"""The order of a federation, once: enrol, rounds (with secure sums each followed by `unmask`), finish.

FLARE, the in-process runner and tests drive it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared_components.common.sanitise import one_line
from shared_components.federation.messages import FederationError, Message
from shared_components.federation.server.parse_reply import read
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.server.update_checks import RejectedUpdate


@dataclass(frozen=True)
class Ask:
    """A task, a message for each site that is asked, and how many answers are enough."""

    task: str  # enrol, round, unmask or finish
    messages: dict[str, Message]
    needed: int


@dataclass(frozen=True)
class Answers:
    """A reply, or the reason why there is none, for each site that was asked."""

    replies: Mapping[str, Message]
    failures: Mapping[str, str] = field(default_factory=dict)

    def reasons(self) -> str:
        """Return in one line which sites have not answered, and why."""
        return "; ".join(f"{site}: {self.failures[site]}" for site in sorted(self.failures))


def understood(task: str, answers: Answers) -> Answers:
    """Parse the replies to a task; a malformed reply becomes the reason why there is none."""
    replies: dict[str, Message] = {}
    failures = {site: one_line(reason) for site, reason in answers.failures.items()}
    for site, reply in answers.replies.items():
        try:
            replies[site] = read(task, reply)
        except RejectedUpdate as error:
            failures[site] = str(error)
    return Answers(replies, failures)


Conversation = Generator[Ask, Answers, None]


def conduct(server: ServerRunner) -> Conversation:
    """Yield what to ask and take the answers, from enrolment (also after a resume) to the last delivery.

    FederationError says in one sentence why a job cannot go on.
    """
    messages = server.enrol_messages()
    while messages:
        answers = understood("enrol", (yield Ask("enrol", messages, len(messages))))
        messages = server.enrolled(answers.replies, answers.failures)
    while server.state.round < server.job.rounds:
        messages = server.round_messages()
        answers = understood("round", (yield Ask("round", messages, server.needed(messages))))
        if messages := server.unmask_messages(answers.replies, answers.failures):
            opened = understood("unmask", (yield Ask("unmask", messages, server.needed_to_unmask)))
            server.unmasked(opened.replies, opened.failures)
        server.finish_round(answers.replies, answers.failures)
        del answers  # a model of every site, which the next round would wait beside
    messages = server.finish_messages()
    wanted = server.wanted(messages)  # not `needed`, since nothing is aggregated any more
    done = understood("finish", (yield Ask("finish", messages, wanted)))
    server.finished(done.replies, done.failures)
    if len(done.replies) < wanted:
        raise FederationError(f"all rounds are done, but not all sites have finished: {done.reasons()}")


def drive(
    server: ServerRunner,
    exchange: Callable[[Ask], Answers],
    *,
    told: Callable[[dict[str, Any]], None] = lambda record: None,
) -> None:
    """Carry a conversation to its end; ``told`` is called after every round with the record of its aggregation."""
    conversation = conduct(server)
    ask = next(conversation)
    while True:
        before = server.state.round
        try:
            ask = conversation.send(exchange(ask))
        except StopIteration:
            return
        if server.state.round > before:
            told(server.last_record)
