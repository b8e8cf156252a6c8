"""A whole federation in one process, without FLARE: for comparisons, experiments and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from shared_components.data.sites import load_site
from shared_components.federation.messages import FederationError, Job, Message, SiteRefusal
from shared_components.federation.server import ServerRunner, open_run
from shared_components.federation.site import SiteRunner


def run_together(
    job: Job,
    sites: Mapping[str, Path],
    root: Path,
    *,
    resume: bool = True,
    told: Callable[[ServerRunner], None] = lambda server: None,
    stop: Callable[[], bool] = lambda: False,
) -> ServerRunner:
    """Run a job to its end, or go on with its newest run; sites answer one after the other.

    The result is bit-equal to FLARE's, whose transport changes no number.

    Args:
        job: What to run.
        sites: Every site's site.yaml by name.
        root: Where runs are kept; this one is ``<root>/<job>/<run>``.
        resume: Go on with an unfinished run of the same job.
        told: Called after every round.
        stop: Asked before every batch.

    Raises:
        FederationError: The job cannot go on; one sentence for a person.
    """
    server = ServerRunner(job, list(sites), open_run(job, root, resume=resume))
    if resume:
        server.resume()
    names = server.sites
    runners = {
        name: SiteRunner(
            name, folder=root, find_site=lambda job, i: load_site(sites[names[i]], name=names[i]), stop=stop
        )
        for name in names
    }
    server.enrolled(_ask("enrol", server.enrol_messages(), runners))
    while server.round < job.rounds:
        server.finish_round(_ask("round", server.round_messages(), runners), {})
        told(server)
    server.finished(_ask("finish", server.round_messages(), runners))
    return server


def _ask(task: str, messages: Mapping[str, Message], runners: Mapping[str, SiteRunner]) -> dict[str, Message]:
    try:
        return {name: runners[name].answer(task, message) for name, message in messages.items()}
    except SiteRefusal as error:
        raise FederationError(str(error)) from error
