"""A method's training at the server: the same tools as a site's local round, on data of the server's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared_components import training as local
from shared_components.data.check import readable_samples
from shared_components.data.sites import Sample, SiteError
from shared_components.federation.bench import Workbench, build_bench
from shared_components.federation.messages import FederationError
from shared_components.federation.work import LocalRound, memory_of
from shared_components.method import Aggregation, Losses, State
from shared_components.partition import Role, fixed_hash, paste

if TYPE_CHECKING:
    from shared_components.federation.server import FindSite, ServerRunner


def open_data(server: ServerRunner, find_data: FindSite | None) -> tuple[Workbench, list[Sample]]:
    """Return the server's tools and its readable training samples.

    Raises:
        FederationError: The server has no data, or they are wrong.
    """
    if find_data is None:
        raise FederationError(
            f"{server.method.name} trains at the server, and this one has no data of its own"
        )
    try:
        data = find_data(server.job, len(server.sites))
        bench = build_bench(server.job, data, start_weights=server.start_weights)
        if server.own_samples is None:  # read once, as sites read theirs at enrolment
            server.own_samples, _ = readable_samples(bench.site, "train", asks=bench.task.asks)
    except (SiteError, ValueError) as error:
        raise FederationError(f"the server cannot train: {error}") from error
    return bench, server.own_samples


def train_at_server(
    server: ServerRunner, find_data: FindSite | None, result: Aggregation
) -> tuple[Aggregation, State, Losses]:
    """Run the method's ``server_update`` after the aggregation of a round.

    All chance follows from (seed, the number after the last site's, round), and optimizers and memory are kept with
    the server's state, so that a resumed run gives equal bits.

    Args:
        server: The run; its ``kept`` tensors go on.
        find_data: Finds the server's own site.yaml.
        result: What the aggregator made.

    Returns:
        What the method made of it, the tensors to keep, and the losses for the record.

    Raises:
        FederationError: The server has no data, or they are wrong.
    """
    assert server.method.server_update is not None
    bench, readable = open_data(server, find_data)
    number = len(server.sites)
    try:
        _check_fixed(server, bench)
        paste(result.models.shared, bench.partition, bench.network.state_dict())
        context = local.make_context(
            bench.bundle.training,
            bench.task,
            round=server.round,
            site=number,
            sites=number,
            received=dict(result.models.shared),
            memory=memory_of(server.kept),
        )
        work = LocalRound(
            network=bench.network,
            partition=bench.partition,
            context=context,
            method=server.method,
            dataset=bench.dataset(readable),
            settings=bench.bundle.training,
            kept=server.kept,
        )
        outcome, losses = server.method.server_update(work, result)
    except (SiteError, ValueError, FloatingPointError) as error:
        raise FederationError(f"the server cannot train: {error}") from error
    if odd := set(outcome.models.shared) ^ set(bench.partition.with_roles(Role.GLOBAL)):
        raise FederationError(
            f"{server.method.name}: its training at the server changes which pieces there are: {odd}"
        )
    return outcome, work.tensors(), losses


def _check_fixed(server: ServerRunner, bench: Workbench) -> None:
    """Refuse to train on other FIXED weights than the sites'; they have agreed on theirs at enrolment."""
    of_sites = server.profiles[server.sites[0]].fixed
    if fixed_hash(bench.network.state_dict(), bench.partition) != of_sites:
        raise ValueError(
            "its fixed weights are not those of the sites; give the server the sites' weights to start from"
        )
