"""A method's training at the server: the same tools as a site's local round, on the server's own data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.core import training as local
from shared_components.core.card import Card
from shared_components.core.initial_weights import describe_start
from shared_components.core.method import Aggregation, Context, Profile, State
from shared_components.core.partition import Role, fixed_hash, paste
from shared_components.data.check import readable_samples
from shared_components.data.classes import name_of, readable_as
from shared_components.data.dataset import collated
from shared_components.data.samples import Sample
from shared_components.data.site import Site, SiteError
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.server.enrolment import check_as_before, load_profile
from shared_components.federation.setup.find_site import SERVER
from shared_components.federation.setup.local_round import LocalRound, memory_of
from shared_components.federation.setup.site_setup import SiteSetup, set_up_site, wrong_kind

logger = logging.getLogger(__name__)

FindSite = Callable[[Job, int], Site]
"""(job, the number after the last site's) -> the server's own site."""


@dataclass(frozen=True)
class ServerData:
    """The server's own data: its site.yaml, its readable samples, and a profile like those of the sites."""

    site: Site
    samples: list[Sample]
    validation: list[Sample]
    profile: Profile

    def check_as_before(self, before: Mapping[str, Any] | None) -> None:
        """Refuse to resume on data other than ``before``, the header of the server's profile when the run began."""
        if before is not None:
            check_as_before({SERVER: load_profile(SERVER, before)}, {SERVER: self.profile})

    def check_beside(self, sites: Mapping[str, Profile]) -> None:
        """Compare the server's profile with those of the sites, which fit together.

        Raises:
            FederationError: The server has another task, other classes, another start or other FIXED weights.
        """
        cards, first = [profile.card for profile in sites.values()], next(iter(sites.values()))
        if self.profile.card not in cards:
            raise FederationError(_other_task(self.site, self.profile.card, cards[0]))
        _refuse_other_fixed(self.profile.fixed, first.fixed)
        if self.profile.start != first.start:
            raise FederationError(
                f"the server cannot train: it begins from {describe_start(self.profile.start)}, and the sites from "
                f"{describe_start(first.start)}; give the server the sites' weights to start from"
            )


class ServerTraining:
    """The training of a method that also trains at the server.

    Args:
        job: What to run.
        find_data: Finds the server's own data; called with the job and the number after the last site's.
        start_weights: The file of the first weights, where the job's ``start`` is ``file``.
    """

    def __init__(self, job: Job, find_data: FindSite | None, start_weights: Path | None) -> None:
        self.job, self.start_weights = job, start_weights
        self.data: ServerData | None = None  # until it is opened
        self._find_data = find_data

    def open(self, *, sites: int, kept: State) -> None:
        """Read and check all of the server's data before the first round.

        ``kept`` are the tensors of a resumed run's training at the server, ``sites`` is the number of sites.

        Raises:
            FederationError: The server has no data, they are wrong, or the method cannot train on them.
        """
        job = self.job
        if self._find_data is None:
            raise FederationError(f"{job.method} trains at the server, and this one has no data of its own")
        try:
            site = self._find_data(job, sites)
            setup = set_up_site(job, site, start_weights=self.start_weights)
            if refusal := wrong_kind(setup.method, setup.task.card):
                raise SiteError(f"{site.path}: {refusal}")
            readable, _ = readable_samples(site, "train", spec=setup.task.spec)
            validation: list[Sample] = []
            if site.split.get("validation"):
                validation, _ = readable_samples(site, "validation", spec=setup.task.spec)
            context = _context(setup, job, round=0, number=sites, memory=memory_of(kept))
            batch = setup.task.add_randomness(collated([setup.dataset(readable)[0]]), context.generator)
            if setup.method.server.check is not None:
                setup.method.server.check(setup.network, batch, context)
        except (SiteError, ValueError) as error:
            raise FederationError(f"the server cannot train: {error}") from error
        start = {key: setup.start[key] for key in ("start", "sha256")}
        fixed = fixed_hash(setup.network.state_dict(), setup.partition)
        profile = Profile(SERVER, len(readable), setup.task.card, fixed=fixed, start=start)
        self.data = ServerData(site, readable, validation, profile)

    def run(
        self, result: Aggregation, *, kept: State, round: int, sites: int
    ) -> tuple[Aggregation, State, dict[str, Any]]:
        """Run the method's ``server_update`` after the aggregation of a round.

        All chance follows from (seed, the number after the last site's, round), and optimizers and memory are saved
        with the server's state (``kept``), so that a resumed run gives equal bits.

        Returns:
            The method's result, the tensors to keep, and fields for the aggregation's record.

        Raises:
            FederationError: The training fails.
        """
        data = self.data
        assert data is not None
        logger.info("round %d: %s trains at the server; the sites wait", round + 1, self.job.method)
        started = time.perf_counter()
        try:
            setup = set_up_site(self.job, data.site, start_weights=self.start_weights)
            method, shared = setup.method, result.models.shared
            assert method.server.update is not None
            _refuse_other_fixed(fixed_hash(setup.network.state_dict(), setup.partition), data.profile.fixed)
            paste(shared, setup.partition, setup.network.state_dict())
            memory = memory_of(kept)
            work = LocalRound(
                network=setup.network,
                partition=setup.partition,
                context=_context(setup, self.job, round=round, number=sites, memory=memory, received=dict(shared)),
                method=method,
                dataset=setup.dataset(data.samples),
                settings=setup.bundle.training.for_samples(len(data.samples)),
                kept=kept,
                validation=setup.dataset(data.validation) if data.validation else None,
            )
            outcome, losses = method.server.update(work, result)
        except (SiteError, ValueError, FloatingPointError) as error:
            raise FederationError(f"the server cannot train: {error}") from error
        if odd := set(outcome.models.shared) ^ set(setup.partition.with_roles(Role.GLOBAL)):
            raise FederationError(f"{method.name}: its training at the server changes which pieces there are: {odd}")
        return outcome, work.tensors(), {"seconds_training": time.perf_counter() - started, "loss": losses}


def _context(setup: SiteSetup, job: Job, *, round: int, number: int, **known: Any) -> Context:
    settings, rounds = setup.bundle.training, job.rounds
    return local.make_context(settings, setup.task, round=round, rounds=rounds, site=number, sites=number, **known)


def _refuse_other_fixed(found: str, expected: str) -> None:
    if found != expected:
        raise FederationError(
            "the server cannot train: its fixed weights are not those of the sites; give the server the sites' weights "
            "to start from"
        )


def _other_task(site: Site, found: Card, expected: Card) -> str:
    """Return a refusal that names both tasks, and the line for site.yaml with which the server's data would fit."""
    wanted = name_of(expected.outputs) if expected.outputs in readable_as(site.source.classes) else ""
    remedy = f"write 'classes: {wanted}' there" if wanted else "name data there that have the sites' task"
    return f"the server cannot train: {site.path}: its task is {found}, and the sites' is {expected}; {remedy}"
