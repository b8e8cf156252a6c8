"""Write a run's models at the server: those for outsiders, and those that sites give to the job's result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.core.card import Card
from shared_components.core.method import Method, Models, site_order
from shared_components.core.site_conditioning import notes_of_untold
from shared_components.core.task import Task, checkpoint_notes, make_task
from shared_components.federation.messages import Job, Message
from shared_components.federation.server import outsider
from shared_components.federation.server.state import ServerState
from shared_components.federation.store import SINGLE
from shared_components.networks.checkpoints import save_weights


def task_of(job: Job, card: Card) -> Task:
    """Return the task of a card, with the settings of the job's bundle for its kind."""
    return make_task(card.kind, job.open_bundle().tasks.get(card.kind), classes=card.outputs)


def write_models(
    job: Job,
    method: Method,
    state: ServerState,
    delivered: Models,
    replies: Mapping[str, Message],
    folder: Path,
    *,
    file: Path | None,
) -> dict[str, Any]:
    """Write the outsiders' models and those that sites give; return the run's record of them.

    Args:
        job: What was run.
        method: Of the job.
        state: Of the server, after the last round.
        delivered: The models that the sites were sent at the finish.
        replies: To the finish.
        folder: Of the server in the run.
        file: The first weights of a job with ``start: file``, if the server has them.
    """

    def expected(site: str) -> dict[str, Tensor]:
        task = task_of(job, state.profiles[site].card)
        return outsider.expected_model(job, method, task, delivered.of(site), file=file)

    def notes(card: Card) -> dict[str, str]:
        return _notes(job, method, state, card)

    given, single = (
        outsider.given_models(replies, state.sites, group, expected, largest_change=job.largest_change)
        for group in outsider.AT_FINISH
    )
    profiles = [state.profiles[site] for site in state.sites]
    found = outsider.outsiders(method, state.partition, delivered, profiles, given)
    files = outsider.write_outsiders(folder, found, notes)
    for site, model in single.items():
        save_weights(folder / SINGLE / f"{site}.safetensors", model, {**notes(state.profiles[site].card), "site": site})
    return {"kind": "outsider", "files": files, "sites": site_order(given)}


def _notes(job: Job, method: Method, state: ServerState, card: Card) -> dict[str, str]:
    """Return the header of an outsider's model."""
    bundle = job.open_bundle()
    size = bundle.training.height, bundle.training.width
    numbers = bundle.tasks.get(card.kind, {})
    notes = checkpoint_notes(bundle.name, method.name, task_of(job, card), numbers, size=size, network=bundle.chosen)
    return notes | notes_of_untold(method, job.arguments, len(state.sites)) | {"round": str(state.round)}
