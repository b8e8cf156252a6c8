"""Sums by region with relays, without transport: the server asks nodes, and each node asks its region's sites.

For its sites a node is the server: they receive the server's messages, and it checks every update like the server.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from shared_components.core.method import Models, Update, load_method, site_order
from shared_components.federation.messages import FLOAT32, Job, Message, RejectedUpdate, Reply, Request
from shared_components.federation.messages.parse import parse_request, parse_request_header
from shared_components.federation.messages.region import (
    Order,
    join_replies,
    join_updates,
    order_header,
    parse_order,
    split_answer,
)  # fmt: skip
from shared_components.federation.messages.wire_format import pack
from shared_components.federation.protocol import Answers, Ask
from shared_components.federation.server.received_updates import Plain
from shared_components.federation.server.region_means import check_region, combine_region
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.server.update_checks import check_header

Judge = Callable[[str, Reply], bool]  # whether a site's reply counts as sufficient
Exchange = Callable[[Ask, Request, Judge], Answers]  # asks sites; the request is the first site's


def answer_order(task: str, message: Message, exchange: Exchange) -> Message:
    """Ask a region's sites, and return the node's answer to the server; ValueError if the message is malformed."""
    order, headers = parse_order(message)
    requests = {site: parse_request_header(task, header) for site, header in headers.items()}
    site, first = next(iter(requests.items()))
    request = parse_request(task, Message(headers[site], message.pieces, message.groups))
    wire = first.job.wire if task == "round" else FLOAT32  # the server sends a node its own float32 weights
    pieces, groups = (
        pack(dict(request.pieces), wire),
        {name: pack(group, wire) for name, group in request.groups.items()},
    )
    messages = {site: Message(header, pieces, dict(groups)) for site, header in headers.items()}
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


def messages_by_region(ask: Ask, server: ServerRunner) -> dict[str, Message]:
    """Return the message to each region's node for the sites that are asked, in region order.

    A region needs its share of the sufficient replies, rounded up.
    """
    samples, models = {site: profile.samples for site, profile in server.state.profiles.items()}, server.state.models
    orders, asked = {}, ask.messages
    for region, sites in sites_by_region(server.job, asked).items():
        share = math.ceil(ask.needed * len(sites) / len(asked))
        known = {site: samples[site] for site in sites if site in samples}
        header = order_header({site: asked[site].header for site in sites}, samples=known, needed=share)
        pieces, groups = asked[sites[0]].pieces, asked[sites[0]].groups  # the same for all sites
        if ask.task == "round":  # not rounded to the wire format
            pieces, groups = models.shared, {name: models.broadcast[name] for name in groups}
        orders[region] = Message(header, pieces, groups)
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
