"""Messages between the server and a region's node: one message for all sites of the region, and one answer.

The messages of a task differ only in their headers. The answer to a round has the mean of the valid updates and the
header of every reply. The answer to any other task has the replies as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from shared_components.common.schema import Schema, parse
from shared_components.core.partition import Pieces
from shared_components.federation.messages.job import MOST_SITES
from shared_components.federation.messages.message import Message, RejectedUpdate, Reply, total_bytes
from shared_components.federation.messages.parse import parse_reply
from shared_components.federation.messages.schema import Samples

LONGEST_REASON = 2_000  # characters of a failure's reason
PIECES = "pieces"  # a site's pieces in the answer to a task that is not a round

SiteName = Annotated[str, Meta(min_length=1, max_length=100)]
Headers = Annotated[dict[SiteName, dict[str, Any]], Meta(max_length=MOST_SITES)]
Reasons = Annotated[dict[SiteName, Annotated[str, Meta(max_length=LONGEST_REASON)]], Meta(max_length=MOST_SITES)]


class Order(Schema, frozen=True):
    """Header of the server's message to a node."""

    common: dict[str, Any]  # header values that are the same for all sites
    sites: Headers  # the other header values, by site
    samples: dict[SiteName, Samples]  # training samples of the sites that have enrolled
    needed: Annotated[int, Meta(ge=0, le=MOST_SITES)]  # sufficient number of replies


class Outcome(Schema, frozen=True):
    """Header of a node's answer."""

    sites: Headers  # headers of the sites' replies
    failures: Reasons  # why a site has no reply
    rejected: Reasons  # why a reply to a round is not in the mean
    bytes: dict[SiteName, Annotated[int, Meta(ge=0, le=2**50)]]  # of the tensors in each reply to a round


@dataclass(frozen=True)
class RegionalReply(Reply):
    """A site's reply to a round, which its region's node has checked and combined with the others.

    ``pieces`` is the region's mean, the same object in all replies of the region.
    """

    region: str = ""
    rejected: str = ""  # why the reply is not in the mean
    bytes: int = 0  # of the tensors that the site has sent
    summed: frozenset[str] = frozenset()  # sites in the mean


def order_header(
    headers: Mapping[str, Mapping[str, Any]], *, samples: Mapping[str, int], needed: int
) -> dict[str, Any]:
    """Combine the headers of the messages to a region's sites into a single header."""
    first, *others = headers.values()
    common = {k: v for k, v in first.items() if all(k in header and header[k] == v for header in others)}
    sites = {site: {k: v for k, v in header.items() if k not in common} for site, header in headers.items()}
    return {"common": common, "sites": sites, "samples": dict(samples), "needed": needed}


def parse_order(message: Message) -> tuple[Order, dict[str, dict[str, Any]]]:
    """Return the header of the server's message, and the header of each site's message; ValueError if malformed."""
    order = parse(Order, message.header, "the server's message to a region")
    if not order.sites:
        raise ValueError("the server's message to a region names no site")
    return order, {site: order.common | own for site, own in order.sites.items()}


def join_replies(replies: Mapping[str, Reply], failures: Mapping[str, str]) -> Message:
    """Return one answer with all replies to a task that is not a round."""
    groups: dict[str, Pieces] = {}
    for site, reply in replies.items():
        own = {PIECES: reply.pieces, **reply.groups}
        groups |= {f"{site}:{name}": dict(tensors) for name, tensors in own.items() if tensors}
    return Message(_outcome(replies, failures), {}, groups)


def join_updates(
    replies: Mapping[str, Reply], failures: Mapping[str, str], rejected: Mapping[str, str], mean: Pieces
) -> Message:
    """Return the answer to a round: the mean of all replies that are not rejected, and the headers of all replies."""
    return Message(_outcome(replies, failures, rejected), mean)


def split_answer(
    task: str, region: str, answer: Message, asked: Sequence[str]
) -> tuple[dict[str, Reply], dict[str, str]]:
    """Return the parsed replies of a region's sites, and the reason for each site without a valid reply.

    RejectedUpdate: the answer is malformed, or names a site that the region was not asked about.
    """
    try:
        outcome = parse(Outcome, answer.header, f"its answer to {task!r}")
    except ValueError as error:
        raise RejectedUpdate(str(error)) from error
    named = {*outcome.sites, *outcome.failures, *outcome.rejected, *outcome.bytes}
    if foreign := sorted(named - set(asked)):
        raise RejectedUpdate(f"it names {foreign[0]!r}, which it was not asked about")
    if task == "round":
        return _split_updates(region, answer, outcome)
    replies, failures = {}, dict(outcome.failures)
    for site, header in outcome.sites.items():
        prefix = f"{site}:"
        groups = {n.removeprefix(prefix): group for n, group in answer.groups.items() if n.startswith(prefix)}
        try:
            replies[site] = parse_reply(task, Message(header, groups.pop(PIECES, {}), groups))
        except RejectedUpdate as error:
            failures[site] = str(error)
    return replies, failures


def _split_updates(region: str, answer: Message, outcome: Outcome) -> tuple[dict[str, Reply], dict[str, str]]:
    if answer.groups:
        raise RejectedUpdate(f"it carries {min(answer.groups)!r}, which no region sends in a round")
    mean = parse_reply("round", Message({}, answer.pieces)).pieces
    replies: dict[str, Reply] = {}
    summed = frozenset(site for site in outcome.sites if not outcome.rejected.get(site))
    for site, header in outcome.sites.items():
        parsed, reason = parse_reply("round", Message(header)).header, outcome.rejected.get(site, "")
        replies[site] = RegionalReply(parsed, mean, {}, region, reason, outcome.bytes.get(site, 0), summed)
    return replies, dict(outcome.failures)


def _outcome(
    replies: Mapping[str, Reply], failures: Mapping[str, str], rejected: Mapping[str, str] | None = None
) -> dict[str, Any]:
    sites = {site: reply.header for site, reply in replies.items()}
    sizes = {site: total_bytes(reply.pieces) for site, reply in replies.items()}
    return {"sites": sites, "failures": _short(failures), "rejected": _short(rejected or {}), "bytes": sizes}


def _short(reasons: Mapping[str, str]) -> dict[str, str]:
    return {site: reason[:LONGEST_REASON] for site, reason in reasons.items()}
