"""Training at the server, on its own data, with the same tools as a site's local round."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.common import machine
from shared_components.core import training as local
from shared_components.core.initial_weights import describe_start
from shared_components.core.method import Aggregation, Context, Profile, State
from shared_components.core.partition import Role, fixed_hash, paste
from shared_components.data.check import readable_samples
from shared_components.data.collate import collate
from shared_components.data.files.classes import name_of, readable_as
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
REMEDY = "give the server the sites' weights to start from"


@dataclass(frozen=True)
class ServerData:
    """The server's own data: its site.yaml, readable samples, and a profile like a site's."""

    site: Site
    samples: list[Sample]
    validation: list[Sample]
    profile: Profile

    def check_as_before(self, before: Mapping[str, Any] | None) -> None:
        """Refuse to resume on other data than when the run began (``before``: header of that profile)."""
        if before is not None:
            check_as_before({SERVER: load_profile(SERVER, before)}, {SERVER: self.profile})

    def check_beside(self, sites: Mapping[str, Profile]) -> None:
        """Refuse a server whose task, start or FIXED weights differ from the sites', by FederationError."""
        cards, first = [profile.card for profile in sites.values()], next(iter(sites.values()))
        card, own, wanted = self.profile.card, self.site, cards[0].outputs
        if card not in cards:
            remedy = "name data there that have the sites' task"
            if wanted in readable_as(own.source.classes) and (classes := name_of(wanted)):
                remedy = f"write 'classes: {classes}' there"
            problem = f"its task is {card}, and the sites' is {cards[0]}"
            raise FederationError(f"the server cannot train: {own.path}: {problem}; {remedy}")
        _refuse_other_fixed(self.profile.fixed, first.fixed)
        if self.profile.start != first.start:
            starts = [describe_start(profile.start) for profile in (self.profile, first)]
            problem = f"it begins from {starts[0]}, and the sites from {starts[1]}"
            raise FederationError(f"the server cannot train: {problem}; {REMEDY}")


class ServerTraining:
    """Training at the server. ``start_weights`` is the file of the first weights, if ``start`` is ``file``."""

    def __init__(self, job: Job, find_data: FindSite | None, start_weights: Path | None) -> None:
        self.job, self.start_weights = job, start_weights
        self.data: ServerData | None = None  # until `open`
        self._find_data = find_data

    def open(self, *, sites: int, kept: State) -> None:
        """Read and check the server's data before the first round; FederationError if the server cannot train.

        ``kept``: tensors of a resumed run's training at the server. ``sites``: number of sites.
        """
        job = self.job
        if self._find_data is None:
            raise FederationError(f"{job.method} trains at the server, and this one has no data of its own")
        try:
            site = self._find_data(job, sites)
            setup = set_up_site(job, site, start_weights=self.start_weights)
            if refusal := wrong_kind(setup.method, setup.task.card):
                raise SiteError(f"{site.path}: {refusal}")
            samples, _ = readable_samples(site, "train", spec=setup.task.spec)
            validation: list[Sample] = []
            if site.split.get("validation"):
                validation, _ = readable_samples(site, "validation", spec=setup.task.spec)
            context = _context(setup, job, round=0, number=sites, memory=memory_of(kept))
            batch = setup.task.add_randomness(collate([setup.dataset(samples)[0]]), context.generator)
            if setup.method.server.check is not None:
                setup.method.server.check(setup.network, batch, context)
        except (SiteError, ValueError) as error:
            raise FederationError(f"the server cannot train: {error}") from error
        start = {key: setup.start[key] for key in ("start", "sha256")}
        fixed = fixed_hash(setup.network.state_dict(), setup.partition)
        profile = Profile(SERVER, len(samples), setup.task.card, fixed=fixed, start=start)
        self.data = ServerData(site, samples, validation, profile)

    def run(
        self, result: Aggregation, *, kept: State, round: int, sites: int
    ) -> tuple[Aggregation, State, dict[str, Any]]:
        """Run the method's training at the server after a round's aggregation.

        A resumed run gives equal bits: all random numbers follow from (seed, the number after the last site's, round),
        and ``kept`` has optimizers and memory. Return the method's result, the tensors to keep, and fields for the
        aggregation's record. FederationError: the training fails.
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
            context = _context(setup, self.job, round=round, number=sites, memory=memory, received=dict(shared))
            settings = setup.bundle.training.for_samples(len(data.samples))
            work = LocalRound(
                setup.network, setup.partition, context, method, setup.dataset(data.samples), settings, kept,
                validation=setup.dataset(data.validation) if data.validation else None,
                workers=machine.frame_workers(),
            )  # fmt: skip
            outcome, losses = method.server.update(work, result)
        except (SiteError, ValueError, FloatingPointError) as error:
            raise FederationError(f"the server cannot train: {error}") from error
        if changed := set(outcome.models.shared) ^ set(setup.partition.with_roles(Role.GLOBAL)):
            raise FederationError(f"{method.name}: training at the server must keep the names of pieces: {changed}")
        return outcome, work.tensors(), {"seconds_training": time.perf_counter() - started, "loss": losses}


def _context(setup: SiteSetup, job: Job, *, round: int, number: int, **known: Any) -> Context:
    settings, rounds = setup.bundle.training, job.rounds
    return local.make_context(settings, setup.task, round=round, rounds=rounds, site=number, sites=number, **known)


def _refuse_other_fixed(fixed: str, expected: str) -> None:
    if fixed != expected:
        raise FederationError(f"the server cannot train: its fixed weights are not those of the sites; {REMEDY}")
