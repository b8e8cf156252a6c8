"""Build the server's messages: the header of every task, and the delivery of a round or of the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared_components.core.method import Method, Models
from shared_components.federation.messages import Job, Message
from shared_components.federation.server.state import ServerState


def header_for(site: str, job: Job, run: str, state: ServerState) -> dict[str, Any]:
    """Return the plain values of every message to a site, see `message_schema.REQUEST`."""
    return {
        "job": job.to_json(),
        "run": run,
        "round": state.round,
        "index": state.sites.index(site),
        "number": state.numbers[site],
        "numbers": len(state.numbers),
        "sites": len(state.sites),
    }


def deliveries(
    job: Job, method: Method, run: str, state: ServerState, models: Models, sites: Sequence[str]
) -> dict[str, Message]:
    """Return each site's own message with its pieces of the models, what is broadcast, and all sites' profile items."""
    names = sorted(method.requires.items | method.requires.optional_items)
    header: dict[str, Any] = {"items": {n: [state.profiles[s].items.get(n) for s in state.sites] for n in names}}
    if method.requires.pooled:
        header["pool"] = state.sites
    groups = {group: pieces for group, pieces in models.broadcast.items() if pieces}
    return {
        site: Message(
            header_for(site, job, run, state) | header | {"answered": state.answered.get(site)},
            models.of(site),
            dict(groups),
        )
        for site in sites
    }
