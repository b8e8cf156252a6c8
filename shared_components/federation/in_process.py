"""Run a whole federation in one process, without FLARE: for comparisons, experiments and tests."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared_components.common.progress import under
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError, Job, Message, Reply, SiteRefusal
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.privacy.gaussian import Randomness
from shared_components.federation.protocol import Answers, Ask, parse_answers, run_federation
from shared_components.federation.runs.run_folder import lock_run, open_run, split_resume
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.site.runner import SiteRunner


def run_together(
    job: Job,
    sites: Mapping[str, Path],
    root: Path,
    *,
    after_round: Callable[[ServerRunner], None] = lambda server: None,
    before_round: Callable[[ServerRunner], None] = lambda server: None,
    **options: Any,
) -> ServerRunner:
    """Run a job to its end, or resume its newest run; sites answer one after the other.

    ``after_round`` and ``before_round`` are called in every round, also in an interrupted round that a resume repeats.
    `open_together` explains the other arguments. The result is bit-equal to FLARE's. FederationError: the job cannot go
    on.
    """
    server, runners = open_together(job, sites, root, **options)

    def exchange(ask: Ask) -> Answers:
        if ask.task == "round":
            before_round(server)
        with under(f"round {server.state.round + 1}/{server.job.rounds}" if ask.task == "round" else ask.task):
            return answer(ask, runners, keep=server.inbox.keep)

    with lock_run(server.folder):
        run_federation(server, exchange, after_round=lambda record: after_round(server))
    return server


def open_together(
    job: Job,
    sites: Mapping[str, Path],  # every site's site.yaml by name
    root: Path,  # of all runs; this run is ``<root>/<job>/<run>``
    *,
    server_data: Path | None = None,  # the server's own site.yaml, for methods that train there
    start_weights: Path | None = None,  # file of the first weights, if the job's ``start`` is ``file``
    resume: bool | str = True,  # an unfinished run of the same job, see `open_run` and `split_resume`
    stop: Callable[[], bool] = lambda: False,  # called before every batch; True ends the training
    random: Randomness = os.urandom,  # source of the noise, see `SiteRunner`
) -> tuple[ServerRunner, dict[str, SiteRunner]]:
    """Return the server and the sites of a run without starting them."""
    data = None if server_data is None else lambda job, number: load_site(server_data, name="server")
    run, after = split_resume(resume)
    folder = open_run(job, root, resume=run)
    server = ServerRunner(job, list(sites), folder, find_data=data, start_weights=start_weights)
    if resume:
        server.resume(after)
    names = {number: site for site, number in server.state.numbers.items()}
    runners = {
        name: SiteRunner(
            name, find_site=lambda job, i: load_site(sites[names[i]], name=names[i]), folder=root,
            start_weights=start_weights, stop=stop, random=random,
        )
        for name in server.state.sites
    }  # fmt: skip
    return server, runners


def answer(
    ask: Ask, runners: Mapping[str, SiteRunner], *, keep: Callable[[str, Reply], Reply] = lambda site, reply: reply
) -> Answers:
    """Let every site that is asked answer in turn; FederationError if one refuses.

    ``keep(site, reply)`` stores each parsed reply until all have answered, see `Inbox.keep`.
    """
    replies: dict[str, Reply] = {}
    failures: dict[str, str] = {}
    for name, message in ask.messages.items():
        with under(name):
            try:
                answers = parse_answers(ask.task, {name: answer_request(runners[name], ask.task, message)})
            except SiteRefusal as error:
                raise FederationError(str(error)) from error
            replies |= {site: keep(site, reply) for site, reply in answers.replies.items()}
            failures |= answers.failures
    return Answers(replies, failures)


def answer_request(runner: SiteRunner, task: str, message: Message) -> Message:
    """Parse the server's message at a site, and return the site's answer; SiteRefusal if the site refuses."""
    try:
        request = parse_request(task, message)
    except ValueError as error:
        raise SiteRefusal(f"site {runner.name}: {error}") from error
    return runner.answer(request)
