"""Models of a run at the server: for sites outside the federation, and those that sites publish in the job's result.

The model for unseen sites is the mean of the models of consenting sites.

FedST (section on the out-of-federation setting) averages the personalised models of the sites. A site consents with
`publish: [model]` in its site.yaml; its whole model, LOCAL pieces included, then travels once, at the finish. Where all
pieces are GLOBAL every participant holds the model anyway, and no consent is needed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import weighted_sum
from shared_components.core.card import Card
from shared_components.core.method import Method, Models, Profile, State, site_order
from shared_components.core.partition import Partition, Pieces, Role, paste
from shared_components.core.site_conditioning import unconditioned_header
from shared_components.core.task import Task, checkpoint_notes, make_task
from shared_components.federation.messages import Job, RejectedUpdate, Reply
from shared_components.federation.messages.check_pieces import check_pieces
from shared_components.federation.messages.schema import PUBLISHED_MODELS
from shared_components.federation.runs.store import SINGLE
from shared_components.federation.server.state import ServerState
from shared_components.federation.setup.allowed_payload import expect, first_weights
from shared_components.networks.checkpoints import save_weights

logger = logging.getLogger(__name__)


def given_models(
    replies: Mapping[str, Reply],
    sites: Sequence[str],
    group: str,
    expected: Callable[[str], State],
    *,
    largest_change: float,
) -> dict[str, Pieces]:
    """Return the whole models in a group (`PUBLISHED_MODELS`) of the replies to the finish, in order of ``sites``.

    A model whose tensors differ from the ``expected`` ones of its site in name, shape or type, or move further than
    ``largest_change`` allows an update, is left out with a warning.
    """
    given: dict[str, Pieces] = {}
    for site in (site for site in sites if site in replies and group in replies[site].groups):
        model = replies[site].groups[group]
        try:
            check_pieces(model, expected(site), largest_change=largest_change)
            given[site] = model
        except RejectedUpdate as error:
            logger.warning("the model that %s gives ('%s') is not used: %s", site, group, error)
    return given


def expected_model(job: Job, method: Method, task: Task, pieces: Pieces, *, file: Path | None) -> State:
    """Return what a site's whole model is compared with: the job's first weights with the delivered pieces in them."""
    partition = expect(job, method, task).partition
    if partition.roles == {Role.GLOBAL}:
        return whole(pieces, partition)
    state = first_weights(job, task, file=file).state
    paste(pieces, partition, state)
    return state


def write_unseen_site_models(
    folder: Path, models: Mapping[Card, State], notes: Callable[[Card], Mapping[str, str]]
) -> dict[str, str]:
    """Write ``model.safetensors``, or one ``model-<kind>.safetensors`` per task; return their names by the card's text.

    ``notes`` returns a task's header.
    """
    written: dict[str, str] = {}
    for number, (card, state) in enumerate(models.items()):
        name = "model" if len(models) == 1 else f"model-{card.kind}"
        if f"{name}.safetensors" in written.values():  # two class maps of one kind
            name = f"{name}-{number + 1}"
        save_weights(folder / f"{name}.safetensors", state, {**notes(card), "site": "server"})
        written[str(card)] = f"{name}.safetensors"
    return written


def unseen_site_models(
    method: Method, partition: Partition, models: Models, profiles: Sequence[Profile], given: Mapping[str, Pieces]
) -> dict[Card, State]:
    """Return the model for unseen sites of every task that has one, from what was delivered or from consenting sites.

    ``profiles`` are those of all sites, in order; ``given`` the whole models of the sites that consent.
    """
    found: dict[Card, State] = {}
    for card in dict.fromkeys(profile.card for profile in profiles):
        members = [p for p in profiles if p.card == card and p.site in given]
        if members:
            combine = method.server.outsider or mean_model
            found[card] = combine([given[p.site] for p in members], [p.samples for p in members])
        elif partition.roles <= {Role.GLOBAL} and method.local.deploy is None:
            found[card] = whole(models.shared, partition)
    return found


def mean_model(models: Sequence[State], samples: Sequence[int]) -> State:
    """Return the mean weighted by samples; see `weighted_sum`."""
    weights = [count / sum(samples) for count in samples]
    return {name: weighted_sum([model[name] for model in models], weights) for name in models[0]}


def whole(pieces: Pieces, partition: Partition) -> State:
    """Join the pieces of a network to whole tensors."""
    rows: dict[str, list[Tensor]] = {piece.tensor: [] for piece in partition}
    for piece in sorted(partition, key=lambda p: p.start or 0):
        rows[piece.tensor].append(pieces[piece.name])
    return {name: found[0] if len(found) == 1 else torch.cat(found) for name, found in rows.items()}


def task_of(job: Job, card: Card) -> Task:
    """Return the task of a card, with the settings of the job's bundle for its kind."""
    return make_task(card.kind, job.open_bundle().tasks.get(card.kind), classes=card.outputs)


def write_models(
    job: Job,
    method: Method,
    state: ServerState,
    delivered: Models,
    replies: Mapping[str, Reply],
    folder: Path,
    *,
    file: Path | None,
) -> dict[str, Any]:
    """Write the models for unseen sites and the published models into the server's folder; return their record.

    ``delivered`` are the models that the sites were sent at the finish, ``replies`` the answers to it, and ``file`` the
    first weights of a job with ``start: file``, if the server has them.
    """
    shutil.rmtree(folder / SINGLE, ignore_errors=True)  # an earlier finish's: a site may no longer consent
    for path in folder.glob("model*.safetensors"):
        path.unlink()

    def expected(site: str) -> State:
        task = task_of(job, state.profiles[site].card)
        return expected_model(job, method, task, delivered.of(site), file=file)

    def notes(card: Card) -> dict[str, str]:
        return _notes(job, method, state, card)

    given, single = (
        given_models(replies, state.sites, group, expected, largest_change=job.largest_change)
        for group in PUBLISHED_MODELS
    )
    profiles = [state.profiles[site] for site in state.sites]
    found = unseen_site_models(method, state.partition, delivered, profiles, given)
    files = write_unseen_site_models(folder, found, notes)
    for site, model in single.items():
        save_weights(folder / SINGLE / f"{site}.safetensors", model, {**notes(state.profiles[site].card), "site": site})
    return {"kind": "outsider", "files": files, "sites": site_order(given)}


def _notes(job: Job, method: Method, state: ServerState, card: Card) -> dict[str, str]:
    bundle = job.open_bundle()
    size = bundle.training.height, bundle.training.width
    numbers = bundle.tasks.get(card.kind, {})
    notes = checkpoint_notes(bundle.name, method.name, task_of(job, card), numbers, size=size, network=bundle.chosen)
    return notes | unconditioned_header(method, job.arguments, len(state.sites)) | {"round": str(state.round)}
