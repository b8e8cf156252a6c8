"""The order of a federation: enrol, rounds (with secure sums, each followed by `unmask`), finish.

FLARE, the in-process runner and tests follow it.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared_components.common.counted import first_few
from shared_components.federation.messages import FederationError, Message, RejectedUpdate, Reply
from shared_components.federation.messages.parse import parse_reply
from shared_components.federation.server.runner import ServerRunner


@dataclass(frozen=True)
class Ask:
    """A task, a message for each site that is asked, and the number of answers needed."""

    task: str  # enrol, round, unmask or finish
    messages: dict[str, Message]
    needed: int


@dataclass(frozen=True)
class Answers:
    """A parsed reply, or the reason for its absence, for each site that was asked."""

    replies: Mapping[str, Reply]
    failures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if raw := [site for site, reply in self.replies.items() if not isinstance(reply, Reply)]:
            raise TypeError(f"the reply of {raw[0]} was not parsed; call parse_reply where it arrives")

    def reasons(self) -> str:
        """Return one line with the first sites that have not answered, and why, and the number of the others."""
        return first_few((f"{site}: {self.failures[site]}" for site in sorted(self.failures)), "; ")


def parse_answers(task: str, messages: Mapping[str, object], failures: Mapping[str, str] | None = None) -> Answers:
    """Parse the sites' answers to a task; a malformed reply becomes a failure."""
    replies: dict[str, Reply] = {}
    reasons = dict(failures or {})
    for site, message in messages.items():
        try:
            replies[site] = parse_reply(task, message)
        except RejectedUpdate as error:
            reasons[site] = str(error)
    return Answers(replies, reasons)


Conversation = Generator[Ask, Answers, None]


def conduct(server: ServerRunner) -> Conversation:
    """Yield each `Ask`, from enrolment to the last delivery, and receive its `Answers`; a resume also starts here.

    FederationError: the job cannot go on.
    """
    messages = server.enrol_messages()
    while messages:
        answers = yield Ask("enrol", messages, len(messages))
        messages = server.enrolled(answers.replies, answers.failures)
    while server.state.round < server.job.rounds:
        messages = server.round_messages()
        answers = yield Ask("round", messages, server.needed(messages))
        if messages := server.unmask_messages(answers.replies, answers.failures):
            opened = yield Ask("unmask", messages, server.upload.to_unmask)
            server.unmasked(opened.replies, opened.failures)
        server.finish_round(answers.replies, answers.failures)
        del answers  # frees a model of every site before the next round
    messages = server.finish_messages()
    wanted = server.wanted(messages)  # not `needed`: nothing is aggregated any more
    done = yield Ask("finish", messages, wanted)
    server.finished(done.replies, done.failures)
    if len(done.replies) < wanted:
        raise FederationError(f"all rounds are done, but not all sites have finished: {done.reasons()}")


def run_federation(
    server: ServerRunner,
    exchange: Callable[[Ask], Answers],
    *,
    after_round: Callable[[dict[str, Any]], None] = lambda record: None,
) -> None:
    """Run a federation to its end; call ``after_round`` with the record of each aggregation."""
    conversation = conduct(server)
    ask = next(conversation)
    while True:
        before = server.state.round
        try:
            ask = conversation.send(exchange(ask))
        except StopIteration:
            return
        if server.state.round > before:
            after_round(server.last_record)
