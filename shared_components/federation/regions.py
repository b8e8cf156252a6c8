"""Sums by region with relays, without transport: the server asks nodes, and each node asks its region's sites.

For its sites a node is the server: they receive the server's messages, and it checks every update like the server.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from shared_components.core.method import Models, Update, load_method, site_order
from shared_components.federation.messages import Job, Message, RejectedUpdate, Reply, Request
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.messages.region import (
    Order,
    join_messages,
    join_replies,
    join_updates,
    split_answer,
    split_message,
)  # fmt: skip
from shared_components.federation.protocol import Answers, Ask
from shared_components.federation.server.received_updates import Plain
from shared_components.federation.server.region_means import check_region, combine_region
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.server.update_checks import check_header

Judge = Callable[[str, Reply], bool]  # whether a site's reply counts as sufficient
Exchange = Callable[[Ask, Request, Judge], Answers]  # asks sites; the request is the first site's


def answer_order(task: str, message: Message, exchange: Exchange) -> Message:
    """Ask a region's sites, and return the node's answer to the server; ValueError if the message is malformed."""
    order, messages = split_message(message)
    if not messages:
        raise ValueError("the server's message to a region names no site")
    requests = {site: parse_request(task, part) for site, part in messages.items()}
    request = next(iter(requests.values()))
    ask = Ask(task, messages, order.needed)
    if task != "round":
        answers = exchange(ask, request, lambda site, reply: True)
        return join_replies(answers.replies, answers.failures)
    checks = _Checks(order, request)
    answers = exchange(ask, request, lambda site, reply: isinstance(checks.outcome(site, reply), Update))
    outcomes = {site: checks.outcome(site, answers.replies[site]) for site in site_order(answers.replies)}
    rejected = {site: str(outcome) for site, outcome in outcomes.items() if isinstance(outcome, RejectedUpdate)}
    updates = [outcome for outcome in outcomes.values() if isinstance(outcome, Update)]
    mean = combine_region("", updates, dict(request.pieces)).pieces if updates else {}
    return join_updates(answers.replies, answers.failures, rejected, dict(mean))


class _Checks:
    """The server's checks of the updates of a round, each made once."""

    def __init__(self, order: Order, request: Request) -> None:
        self._order, self._request, self._upload = order, request, Plain(request.job)
        self._models = Models(dict(request.pieces), {})
        self._method = load_method(request.job.method, **request.job.arguments)
        self._outcomes: dict[str, Update | RejectedUpdate] = {}

    def outcome(self, site: str, reply: Reply) -> Update | RejectedUpdate:
        """Return the update of a site's only reply, or the reason for its rejection."""
        if site not in self._outcomes:
            try:
                self._outcomes[site] = self._update(site, reply)
            except RejectedUpdate as error:
                self._outcomes[site] = error
        return self._outcomes[site]

    def _update(self, site: str, reply: Reply) -> Update:
        round = self._request.round
        samples = check_header(reply.header, round=round, largest_samples=self._order.samples.get(site, 0))
        return self._upload.take(site, round, reply, self._models, samples=samples, method=self._method)


def messages_by_region(ask: Ask, server: ServerRunner, *, lost: Collection[str] = ()) -> dict[str, Message]:
    """Return the message to each region's node for the sites that are asked and not lost, in region order.

    A region needs its share of the sufficient replies, rounded up.
    """
    samples = {site: profile.samples for site, profile in server.state.profiles.items()}
    orders, asked = {}, {site: message for site, message in ask.messages.items() if site not in lost}
    for region, sites in sites_by_region(server.job, asked).items():
        share = math.ceil(ask.needed * len(sites) / len(ask.messages))
        known = {site: samples[site] for site in sites if site in samples}
        orders[region] = join_messages({s: ask.messages[s] for s in sites}, samples=known, needed=share)
    return orders


def answers_of_region(server: ServerRunner, task: str, region: str, answer: Message, asked: Sequence[str]) -> Answers:
    """Return the parsed replies in a node's answer; if the answer is not valid, all of its sites have failed."""
    state, samples = server.state, {site: profile.samples for site, profile in server.state.profiles.items()}
    try:
        replies, failures = split_answer(task, region, answer, asked)
        if task == "round":
            check_region(replies, state.models, job=server.job, round=state.round, samples=samples)
    except RejectedUpdate as error:
        return Answers({}, dict.fromkeys(asked, f"the answer of region {region} is refused: {error}"))
    return Answers(replies, failures)


def sites_by_region(job: Job, sites: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the given sites of each region that has one, in region order and site order."""
    found = {region: [site for site in site_order(job.regions[region]) if site in sites] for region in job.regions}
    return {region: found[region] for region in site_order(found) if found[region]}
