"""A method's training at the server: the same tools as a site's local round, on the server's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.core import training as local
from shared_components.core.card import Card
from shared_components.core.initial_weights import said
from shared_components.core.method import Aggregation, Context, Losses, Profile, State
from shared_components.core.partition import Role, fixed_hash, paste
from shared_components.data.check import readable_samples
from shared_components.data.classes import name_of, readable_as
from shared_components.data.dataset import collated
from shared_components.data.samples import Sample
from shared_components.data.site import Site, SiteError
from shared_components.federation.find_site import SERVER
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.server.enrolment import check_as_before, profile_of, wrong_kind
from shared_components.federation.site.local_round import LocalRound, memory_of
from shared_components.federation.site.site_setup import SiteSetup, set_up_site

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
            check_as_before({SERVER: profile_of(SERVER, before)}, {SERVER: self.profile})

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
                f"the server cannot train: it begins from {said(self.profile.start)}, and the sites from "
                f"{said(first.start)}; give the server the sites' weights to start from"
            )


def open_server_data(
    job: Job, find_data: FindSite | None, *, start_weights: Path | None, sites: int, kept: State
) -> ServerData:
    """Read and check all of the server's data before the first round.

    ``kept`` are the tensors of a resumed run's training at the server, ``sites`` is the number of sites.

    Raises:
        FederationError: The server has no data, they are wrong, or the method cannot train on them.
    """
    if find_data is None:
        raise FederationError(f"{job.method} trains at the server, and this one has no data of its own")
    try:
        site = find_data(job, sites)
        bench = set_up_site(job, site, start_weights=start_weights)
        if refusal := wrong_kind(bench.method, bench.task.card):
            raise SiteError(f"{site.path}: {refusal}")
        readable, _ = readable_samples(site, "train", spec=bench.task.spec)
        validation: list[Sample] = []
        if site.split.get("validation"):
            validation, _ = readable_samples(site, "validation", spec=bench.task.spec)
        context = _context(bench, job, round=0, number=sites, memory=memory_of(kept))
        batch = bench.task.add_randomness(collated([bench.dataset(readable)[0]]), context.generator)
        if bench.method.server.check is not None:
            bench.method.server.check(bench.network, batch, context)
    except (SiteError, ValueError) as error:
        raise FederationError(f"the server cannot train: {error}") from error
    start = {key: bench.start[key] for key in ("start", "sha256")}
    fixed = fixed_hash(bench.network.state_dict(), bench.partition)
    profile = Profile(SERVER, len(readable), bench.task.card, fixed=fixed, start=start)
    return ServerData(site, readable, validation, profile)


def train_at_server(
    job: Job, data: ServerData, result: Aggregation, *, kept: State, start_weights: Path | None, round: int, sites: int
) -> tuple[Aggregation, State, Losses]:
    """Run the method's ``server_update`` after the aggregation of a round.

    All chance follows from (seed, the number after the last site's, round), and optimizers and memory are saved with
    the server's state (``kept``), so that a resumed run gives equal bits.

    Returns:
        The method's result, the tensors to keep, and the losses for the record.

    Raises:
        FederationError: The training fails.
    """
    try:
        bench = set_up_site(job, data.site, start_weights=start_weights)
        method, shared = bench.method, result.models.shared
        assert method.server.update is not None
        _refuse_other_fixed(fixed_hash(bench.network.state_dict(), bench.partition), data.profile.fixed)
        paste(shared, bench.partition, bench.network.state_dict())
        work = LocalRound(
            network=bench.network,
            partition=bench.partition,
            context=_context(bench, job, round=round, number=sites, memory=memory_of(kept), received=dict(shared)),
            method=method,
            dataset=bench.dataset(data.samples),
            settings=bench.bundle.training.for_samples(len(data.samples)),
            kept=kept,
            validation=bench.dataset(data.validation) if data.validation else None,
        )
        outcome, losses = method.server.update(work, result)
    except (SiteError, ValueError, FloatingPointError) as error:
        raise FederationError(f"the server cannot train: {error}") from error
    if odd := set(outcome.models.shared) ^ set(bench.partition.with_roles(Role.GLOBAL)):
        raise FederationError(f"{method.name}: its training at the server changes which pieces there are: {odd}")
    return outcome, work.tensors(), losses


def _context(bench: SiteSetup, job: Job, *, round: int, number: int, **known: Any) -> Context:
    settings, rounds = bench.bundle.training, job.rounds
    return local.make_context(settings, bench.task, round=round, rounds=rounds, site=number, sites=number, **known)


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
