"""Models of a run that have rows of their own: last round, averaged over rounds (SWA), and controls.

A run trains once for all these rows. No model is chosen by a score, except in `best_round`, so the validation videos
may score them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from shared_components.common import machine
from shared_components.core import evaluation
from shared_components.core.method import Models
from shared_components.core.partition import Pieces, paste
from shared_components.core.patches import controls
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.experiments.comparison.pictures import TESTED, write_pictures
from shared_components.experiments.comparison.plan import AVERAGED, LAST
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.setup.site_setup import SiteSetup, set_up_site
from shared_components.networks.checkpoints import load_weights

SPLIT = "validation"


def score_models(server: ServerRunner, sites: dict[str, Site], wanted: set[str]) -> dict[str, dict[str, Any]]:
    """Score models of a run on every site's validation videos, with pictures; return the scores by model and site.

    Raises:
        ValueError: There is no such model.
    """
    return {
        which: {name: _score(server, site, name, which) for name, site in sites.items()} for which in sorted(wanted)
    }


def _score(server: ServerRunner, site: Site, name: str, which: str) -> dict[str, Any]:
    setup = set_up_site(server.job, site, start_weights=server.training.start_weights)
    network, chosen = model(server, setup, name, which), samples(site, SPLIT, setup.task.spec)
    scores = evaluation.score_fully(network, setup.task, chosen, size=setup.size, split=SPLIT, by_sample=True)
    own = Path(which.replace(" ", "-"))
    shown = write_pictures(network, setup.task, chosen, size=setup.size, folder=server.folder / name / TESTED / own)
    for record in shown:
        record["files"] = [[panel, str(own / file)] for panel, file in record["files"]]
    return {"site": site.name, **scores, "pictures": shown}


def model_after_round(server: ServerRunner, which: str) -> Models | None:
    """Return `LAST`, or the mean over the rounds so far, `AVERAGED`, between two rounds; None before the first mean."""
    finish, last = server.method.server.finish, server.state.models
    if which == LAST:
        return last
    mean = finish(server.state.aggregator, last) if finish else last
    return None if mean is last else mean


def score_model(server: ServerRunner, site: Site, pieces: Pieces) -> dict[str, Any]:
    """Score a model on a site's validation videos, without pictures."""
    setup = set_up_site(server.job, site, start_weights=server.training.start_weights)
    paste(pieces, setup.partition, setup.network.state_dict())
    chosen = samples(site, SPLIT, setup.task.spec)
    return evaluation.score_fully(setup.network, setup.task, chosen, size=setup.size, split=SPLIT)


def model(server: ServerRunner, setup: SiteSetup, site: str, which: str) -> nn.Module:
    """Return a model of a run at a site: `LAST`, `AVERAGED`, or one of `patches.controls`, on the site's device.

    Raises:
        ValueError: There is no such model.
    """
    if which == LAST:
        paste(server.state.models.of(site), setup.partition, setup.network.state_dict())
    elif which == AVERAGED:
        setup.network.load_state_dict(load_weights(server.folder / site / "model.safetensors"))
    else:
        found = controls(setup.network)
        if which not in found:
            raise ValueError(f"a run has no model {which!r}; it has {', '.join((LAST, AVERAGED, *found))}")
        return found[which].to(machine.device())
    return setup.network
