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

from shared_components.aggregators.mean import weighted_sum
from shared_components.card import Card
from shared_components.checkpoints import save_weights
from shared_components.federation.checks import RejectedUpdate, check_model
from shared_components.federation.messages import Message
from shared_components.method import Method, Models, Profile, State
from shared_components.partition import Partition, Pieces, Role

logger = logging.getLogger(__name__)

GROUP = "model"  # of a reply at the finish, and the item of `publish` that allows it
RESULT = "result"  # likewise: the same tensors, for the job's result, each site's by itself
AT_FINISH = (GROUP, RESULT)


def given_models(
    replies: Mapping[str, Message], profiles: Mapping[str, Profile], group: str
) -> dict[str, Pieces]:
    """Return the whole models that sites give in this group of their last reply, by site and in the sites' order.

    One that is not whole, or not of the same tensors as the others' of its task, is left out with a warning.
    """
    given: dict[str, Pieces] = {}
    for site in (site for site in profiles if site in replies and group in replies[site].groups):
        card = profiles[site].card
        alike = next((model for name, model in given.items() if profiles[name].card == card), None)
        try:
            given[site] = check_model(replies[site], group, alike)
        except RejectedUpdate as error:
            logger.warning("the model that %s gives ('%s') is not used: %s", site, group, error)
    return given


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
    method: Method,
    partition: Partition,
    models: Models,
    profiles: Sequence[Profile],
    given: Mapping[str, Pieces],
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
            combine = method.outsider or mean_model
            found[card] = combine([given[p.site] for p in members], [p.samples for p in members])
        elif partition.roles <= {Role.GLOBAL} and method.deploy is None:
            found[card] = whole(models.shared, partition)
    return found


def mean_model(models: Sequence[State], samples: Sequence[int]) -> State:
    """Return the mean weighted by samples, summed in float64; of whole numbers the largest."""
    total = sum(samples)
    weights = [count / total for count in samples]
    return {
        name: weighted_sum([model[name] for model in models], weights)
        if value.is_floating_point()
        else torch.stack([model[name] for model in models]).amax(0)
        for name, value in models[0].items()
    }


def whole(pieces: Pieces, partition: Partition) -> State:
    """Put the pieces of a network together to whole tensors."""
    rows: dict[str, list[Tensor]] = {}
    for piece in sorted(partition, key=lambda p: p.start or 0):
        rows.setdefault(piece.tensor, []).append(pieces[piece.name])
    names = dict.fromkeys(piece.tensor for piece in partition)
    return {name: rows[name][0] if len(rows[name]) == 1 else torch.cat(rows[name]) for name in names}
