"""Sums by region: the mean of each region's updates, then the mean of the regions, in float64 and in a fixed order.

A region's mean weighs its sites by samples, adds them in site order, and is rounded to the weights' own type. The
aggregator gets one update per region, with the region's samples, and adds them in region order. With relays, a region's
node computes the mean (`federation.regions`), else the server does, from the same numbers in the same order.
"""

from collections.abc import Mapping, Sequence

from shared_components.core.aggregators.mean import mean_pieces
from shared_components.core.method import Method, Models, Update
from shared_components.core.partition import Pieces
from shared_components.federation.messages import FederationError, Job, RejectedUpdate, Reply
from shared_components.federation.messages.parse import check_pieces
from shared_components.federation.messages.region import RegionalReply
from shared_components.federation.server.update_checks import check_header


def combine_region(
    region: str, updates: Sequence[Update], shared: Pieces, reply: RegionalReply | None = None
) -> Update:
    """Return the update of a region: the mean of its sites' updates, unless its node has sent it, and all samples.

    FederationError: the node's mean has other sites.
    """
    if reply is not None and reply.summed != {update.site for update in updates}:
        raise FederationError(f"the mean of region {region} has other sites than its valid updates; resume the run")
    pieces = mean_pieces(updates, shared) if reply is None else dict(reply.pieces)
    return Update(region, updates[0].round, pieces, samples=sum(update.samples for update in updates))


def check_region(
    replies: Mapping[str, Reply], models: Models, *, job: Job, round: int, samples: Mapping[str, int]
) -> None:
    """Check the mean of a region and the header of each reply in it; RejectedUpdate names the site or the piece."""
    regional = {site: reply for site, reply in replies.items() if isinstance(reply, RegionalReply)}
    counted = {site: reply for site, reply in regional.items() if not reply.rejected}
    for site, reply in counted.items():
        try:
            check_header(reply.header, round=round, largest_samples=samples[site])
        except RejectedUpdate as error:
            raise RejectedUpdate(f"its mean contains {site}, but {error}") from error
    for reply in list(counted.values())[:1]:  # all replies have the same mean
        check_pieces(reply.pieces, models.shared, largest_change=job.largest_change)


def why_not_by_region(method: Method) -> str:
    """Return why a method does not work with sums by region; empty if it does."""
    if method.server.weighted_sum_only and not method.local.extras:
        return ""
    because = method.about.secure_sums.partition(": ")[2] or "its server needs more than a weighted sum"
    remedy = "leave them out, or choose a method with 'yes' in the last column of docs/reference/methods.md"
    return f"{method.name} does not work with regions ({because}); {remedy}"
