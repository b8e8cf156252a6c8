"""The model of a hospital outside the federation: the mean of what consenting sites use themselves.

FedST (Section on the out-of-federation setting) averages the personalised models of the sites. A site consents with
`publish: [model]` in its site.yaml; its whole model, LOCAL pieces and all, then travels once, at the finish. Where all
pieces are GLOBAL every participant holds the model anyway, and no consent is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import weighted_sum
from shared_components.core.card import Card
from shared_components.core.method import Method, Models, Profile, State
from shared_components.core.partition import Partition, Pieces, Role, paste
from shared_components.core.task import Task
from shared_components.federation.allowed_payload import expect, first_weights
from shared_components.federation.messages import Job, Message
from shared_components.federation.server.update_checks import RejectedUpdate, check_pieces
from shared_components.networks.checkpoints import save_weights

logger = logging.getLogger(__name__)

GROUP = "model"  # of a reply at the finish, and the item of `publish` that allows it
RESULT = "result"  # likewise: the same tensors, for the job's result, each site's by itself
AT_FINISH = (GROUP, RESULT)


def given_models(
    replies: Mapping[str, Message],
    sites: Sequence[str],
    group: str,
    due: Callable[[str], State],
    *,
    largest_change: float,
) -> dict[str, Pieces]:
    """Return the whole models that sites give in this group of their last reply, by site and in the sites' order.

    Args:
        replies: Of the finish.
        sites: All, in order.
        group: `GROUP` or `RESULT`.
        due: Called with a site, see :func:`expected_model`; a model of other tensors, or as far from it as no update
            may be from what was sent, is left out with a warning.
        largest_change: The job's.
    """
    given: dict[str, Pieces] = {}
    for site in (site for site in sites if site in replies and group in replies[site].groups):
        model = replies[site].groups[group]
        try:
            check_pieces(model, _with_counts_of(model, due(site)), largest_change=largest_change)
            given[site] = model
        except RejectedUpdate as error:
            logger.warning("the model that %s gives ('%s') is not used: %s", site, group, error)
    return given


def expected_model(job: Job, method: Method, task: Task, pieces: Pieces, *, file: Path | None) -> State:
    """Return what a site's whole model is compared with: the job's first weights, and in them what was delivered.

    Args:
        job: The job.
        method: Its method.
        task: The site's.
        pieces: The GLOBAL and MIXED ones that the site was sent last.
        file: What a ``start: file`` begins from on this machine, if there is one.
    """
    state = first_weights(job, task, file=file).state
    paste(pieces, expect(job, method, task).partition, state)
    return state


def _with_counts_of(model: Pieces, due: State) -> State:
    """Return what is due, with the model's own whole numbers, such as counts of batches: they have no bound."""
    own = {
        name: value
        for name, value in model.items()
        if name in due
        and not value.is_floating_point()
        and (value.dtype, value.shape) == (due[name].dtype, due[name].shape)
    }
    return due | own


def write_outsiders(
    folder: Path, models: Mapping[Card, State], notes: Callable[[Card], Mapping[str, str]]
) -> dict[str, str]:
    """Write ``model.safetensors``, or one ``model-<kind>.safetensors`` per task where there are several.

    Args:
        folder: Where to.
        models: By task.
        notes: What each task's header says.

    Returns:
        The files' names by the card as text.
    """
    written: dict[str, str] = {}
    for number, (card, state) in enumerate(models.items()):
        name = "model" if len(models) == 1 else f"model-{card.kind}"
        if f"{name}.safetensors" in written.values():  # two class maps of one kind
            name = f"{name}-{number + 1}"
        save_weights(folder / f"{name}.safetensors", state, {**notes(card), "site": "server"})
        written[str(card)] = f"{name}.safetensors"
    return written


def outsiders(
    method: Method, partition: Partition, models: Models, profiles: Sequence[Profile], given: Mapping[str, Pieces]
) -> dict[Card, State]:
    """Return the model for outsiders of every task that has one.

    Args:
        method: Its ``outsider`` decides where it has one.
        partition: Of all sites.
        models: The server's.
        profiles: Of all sites, in order.
        given: Whole models of the sites that consent.
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
    """Put the pieces of a network together to whole tensors."""
    rows: dict[str, list[Tensor]] = {}
    for piece in sorted(partition, key=lambda p: p.start or 0):
        rows.setdefault(piece.tensor, []).append(pieces[piece.name])
    names = dict.fromkeys(piece.tensor for piece in partition)
    return {name: rows[name][0] if len(rows[name]) == 1 else torch.cat(rows[name]) for name in names}
