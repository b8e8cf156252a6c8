"""Models that the server publishes: a model for hospitals outside the federation, and models that sites publish.

The model for held-out sites is the mean of the whole models of consenting sites, LOCAL pieces included (FedST, section
on the out-of-federation setting). A site consents with `publish: [model]` in its site.yaml. If all pieces are GLOBAL,
every participant has the model anyway, and no consent is needed.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import weighted_sum
from shared_components.core.card import Card
from shared_components.core.method import Method, Models, State, site_order
from shared_components.core.partition import Partition, Pieces, Role, paste
from shared_components.core.site_conditioning import unconditioned_header
from shared_components.core.task import Task, checkpoint_header, make_task
from shared_components.federation.messages import Job, RejectedUpdate, Reply
from shared_components.federation.messages.parse import check_pieces
from shared_components.federation.messages.schema import PUBLISHED_MODELS
from shared_components.federation.runs.store import SINGLE
from shared_components.federation.server.state import ServerState
from shared_components.federation.setup.allowed_payload import expect, first_weights
from shared_components.networks.checkpoints import save_weights

logger = logging.getLogger(__name__)


def task_of(job: Job, card: Card) -> Task:
    """Return the task of a card, with the settings of the job's bundle for its kind."""
    return make_task(card.kind, job.open_bundle().tasks.get(card.kind), classes=card.outputs)


def write_models(
    job: Job,
    method: Method,
    state: ServerState,
    delivered: Models,  # what the sites received at the finish
    replies: Mapping[str, Reply],
    folder: Path,
    *,
    file: Path | None,  # first weights of a job with ``start: file``, if the server has them
) -> dict[str, Any]:
    """Write the models for held-out sites and the published models into ``folder``; return their record."""
    shutil.rmtree(folder / SINGLE, ignore_errors=True)  # from an earlier finish: a site may have withdrawn its consent
    for path in folder.glob("model*.safetensors"):
        path.unlink()

    def expected(site: str) -> State:
        """Return the job's first weights with the delivered pieces: a site's whole model is compared with them."""
        task = task_of(job, state.profiles[site].card)
        partition = expect(job, method, task).partition
        if partition.roles == {Role.GLOBAL}:
            return _whole(delivered.of(site), partition)
        first = first_weights(job, task, file=file).state
        paste(delivered.of(site), partition, first)
        return first

    consenting, published = (_checked_models(replies, state.sites, group, expected, job) for group in PUBLISHED_MODELS)
    files: dict[str, str] = {}
    models = _held_out_models(method, state, delivered, consenting)
    for number, (card, model) in enumerate(models.items()):
        name = "model" if len(models) == 1 else f"model-{card.kind}"
        if f"{name}.safetensors" in files.values():  # two class maps of one kind
            name = f"{name}-{number + 1}"
        files[str(card)] = f"{name}.safetensors"
        save_weights(folder / files[str(card)], model, {**_notes(job, method, state, card), "site": "server"})
    for site, model in published.items():
        notes = _notes(job, method, state, state.profiles[site].card)
        save_weights(folder / SINGLE / f"{site}.safetensors", model, {**notes, "site": site})
    return {"kind": "outsider", "files": files, "sites": site_order(consenting)}


def _checked_models(
    replies: Mapping[str, Reply], sites: Sequence[str], group: str, expected: Callable[[str], State], job: Job
) -> dict[str, Pieces]:
    """Return the whole models in a group of the replies to the finish, in order of ``sites``.

    A model is left out with a warning if a name, shape or type differs from the ``expected`` tensors of its site, or if
    it is further from them than the job's ``largest_change`` allows.
    """
    models: dict[str, Pieces] = {}
    for site in (site for site in sites if site in replies and group in replies[site].groups):
        model = replies[site].groups[group]
        try:
            check_pieces(model, expected(site), largest_change=job.largest_change)
            models[site] = model
        except RejectedUpdate as error:
            logger.warning("the model that %s gives ('%s') is not used: %s", site, group, error)
    return models


def _held_out_models(
    method: Method, state: ServerState, delivered: Models, consenting: Mapping[str, Pieces]
) -> dict[Card, State]:
    """Return the model for held-out sites of every task that has one."""
    models: dict[Card, State] = {}
    profiles = [state.profiles[site] for site in state.sites]
    for card in dict.fromkeys(profile.card for profile in profiles):
        members = [p for p in profiles if p.card == card and p.site in consenting]
        if members:
            combine = method.server.held_out_model or _mean_model
            models[card] = combine([consenting[p.site] for p in members], [p.samples for p in members])
        elif state.partition.roles <= {Role.GLOBAL} and method.local.deploy is None:
            models[card] = _whole(delivered.shared, state.partition)
    return models


def _mean_model(models: Sequence[State], samples: Sequence[int]) -> State:
    """Return the mean weighted by samples."""
    weights = [count / sum(samples) for count in samples]
    return {name: weighted_sum([model[name] for model in models], weights) for name in models[0]}


def _whole(pieces: Pieces, partition: Partition) -> State:
    """Join pieces to whole tensors."""
    rows: dict[str, list[Tensor]] = {piece.tensor: [] for piece in partition}
    for piece in sorted(partition, key=lambda p: p.start or 0):
        rows[piece.tensor].append(pieces[piece.name])
    return {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in rows.items()}


def _notes(job: Job, method: Method, state: ServerState, card: Card) -> dict[str, str]:
    bundle = job.open_bundle()
    size = bundle.training.height, bundle.training.width
    numbers = bundle.tasks.get(card.kind, {})
    notes = checkpoint_header(bundle.name, method.name, task_of(job, card), numbers, size=size, network=bundle.chosen)
    return notes | unconditioned_header(method, job.arguments, len(state.sites)) | {"round": str(state.round)}
