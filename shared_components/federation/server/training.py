"""A method's training at the server: the same tools as a site's local round, on data of the server's own."""

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
class Own:
    """The server's own data: what its site.yaml says, its readable samples, and the profile of those to train on."""

    site: Site
    samples: list[Sample]
    validation: list[Sample]
    profile: Profile

    def check_as_before(self, before: Mapping[str, Any] | None) -> None:
        """Refuse other data than when a resumed run began.

        Args:
            before: The header of the profile that the server had then, if there was one.

        Raises:
            FederationError: They are others.
        """
        if before is not None:
            check_as_before({SERVER: profile_of(SERVER, before)}, {SERVER: self.profile})

    def check_beside(self, sites: Mapping[str, Profile]) -> None:
        """Refuse data that are not for what the sites learn, and a network that does not begin as theirs.

        Args:
            sites: Their profiles, which fit together.

        Raises:
            FederationError: The server has another task, other classes, another start or other FIXED weights than
                the sites.
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


def open_own(job: Job, find_data: FindSite | None, *, start_weights: Path | None, sites: int, kept: State) -> Own:
    """Read and check the server's own data, all of them, before the first round.

    Args:
        job: What to run.
        find_data: Finds the server's own data; None: there are none.
        start_weights: The file of the first weights, where the job's ``start`` is ``file``.
        sites: How many sites there are.
        kept: What a resumed run's training goes on from.

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
        context = _context(bench, round=0, number=sites, memory=memory_of(kept))
        batch = bench.task.add_randomness(collated([bench.dataset(readable)[0]]), context.generator)
        if bench.method.server.check is not None:
            bench.method.server.check(bench.network, batch, context)
    except (SiteError, ValueError) as error:
        raise FederationError(f"the server cannot train: {error}") from error
    start = {key: bench.start[key] for key in ("start", "sha256")}
    fixed = fixed_hash(bench.network.state_dict(), bench.partition)
    profile = Profile(SERVER, len(readable), bench.task.card, fixed=fixed, start=start)
    return Own(site, readable, validation, profile)


def train_at_server(
    job: Job, own: Own, result: Aggregation, *, kept: State, start_weights: Path | None, round: int, sites: int
) -> tuple[Aggregation, State, Losses]:
    """Run the method's ``server_update`` after the aggregation of a round.

    All chance follows from (seed, the number after the last site's, round), and optimizers and memory are kept with
    the server's state, so that a resumed run gives equal bits.

    Args:
        job: What is run.
        own: The server's data.
        result: What the aggregator made.
        kept: The tensors that go on from the round before.
        start_weights: The file of the first weights, where the job's ``start`` is ``file``.
        round: From 0 on.
        sites: How many sites take part.

    Returns:
        What the method made of it, the tensors to keep, and the losses for the record.

    Raises:
        FederationError: The training fails.
    """
    try:
        bench = set_up_site(job, own.site, start_weights=start_weights)
        method = bench.method
        assert method.server.update is not None
        _refuse_other_fixed(fixed_hash(bench.network.state_dict(), bench.partition), own.profile.fixed)
        paste(result.models.shared, bench.partition, bench.network.state_dict())
        work = LocalRound(
            network=bench.network,
            partition=bench.partition,
            context=_context(
                bench, round=round, number=sites, memory=memory_of(kept), received=dict(result.models.shared)
            ),
            method=method,
            dataset=bench.dataset(own.samples),
            settings=bench.bundle.training,
            kept=kept,
            validation=bench.dataset(own.validation) if own.validation else None,
        )
        outcome, losses = method.server.update(work, result)
    except (SiteError, ValueError, FloatingPointError) as error:
        raise FederationError(f"the server cannot train: {error}") from error
    if odd := set(outcome.models.shared) ^ set(bench.partition.with_roles(Role.GLOBAL)):
        raise FederationError(f"{method.name}: its training at the server changes which pieces there are: {odd}")
    return outcome, work.tensors(), losses


def _context(bench: SiteSetup, *, round: int, number: int, **known: Any) -> Context:
    settings = bench.bundle.training
    return local.make_context(settings, bench.task, round=round, site=number, sites=number, **known)


def _refuse_other_fixed(own: str, due: str) -> None:
    if own != due:
        raise FederationError(
            "the server cannot train: its fixed weights are not those of the sites; give the server the sites' weights "
            "to start from"
        )


def _other_task(site: Site, own: Card, due: Card) -> str:
    """Say that the server learns something else than the sites, and what to write where its data would do."""
    wanted = name_of(due.outputs) if due.outputs in readable_as(site.source.classes) else ""
    remedy = f"write 'classes: {wanted}' there" if wanted else "name data there that have the sites' task"
    return f"the server cannot train: {site.path}: its task is {own}, and the sites' is {due}; {remedy}"
