"""Score several models of a run: last round, mean over rounds (SWA), best round, and controls.

Each model has its own row in the table. Only the best round is selected by a score, so the validation videos can score
the other models. In FL-EndoViT's Table 7, the best round has the best mean over the sites; the same validation videos
select and score it, so its scores are optimistic for other videos.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from shared_components.common import machine
from shared_components.common.atomic import write_json
from shared_components.core import evaluation
from shared_components.core.card import DASH, Metric
from shared_components.core.image_patches import controls
from shared_components.core.method import Models
from shared_components.core.partition import paste
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.experiments.comparison.pictures import TESTED, write_pictures
from shared_components.experiments.comparison.plan import AVERAGED, BEST_OF, LAST
from shared_components.experiments.comparison.results import Comparison, Result
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.setup.site_setup import SiteSetup, set_up_site
from shared_components.networks.checkpoints import load_weights
from shared_components.reporting.records import Group, score
from shared_components.reporting.tables import Table

SPLIT = "validation"
ROUNDS = "best_rounds"  # key of a site's record: the best round of each metric, from 1
Scores = Mapping[str, Mapping[str, Any]]  # records by site


def score_models(server: ServerRunner, sites: dict[str, Site], models: set[str]) -> dict[str, dict[str, Any]]:
    """Score models on each site's validation videos and write pictures; return the scores by model and site."""
    return {model: {n: _score(server, site, n, model) for n, site in sites.items()} for model in sorted(models)}


def _score(server: ServerRunner, site: Site, name: str, model: str) -> dict[str, Any]:
    setup = set_up_site(server.job, site, start_weights=server.training.start_weights)
    network, validation = load_model(server, setup, name, model), samples(site, SPLIT, setup.task.spec)
    scores = evaluation.score_fully(network, setup.task, validation, size=setup.size, split=SPLIT, by_sample=True)
    subfolder = Path(model.replace(" ", "-"))
    folder = server.folder / name / TESTED / subfolder
    records = write_pictures(network, setup.task, validation, size=setup.size, folder=folder)
    for record in records:
        record["files"] = [[panel, str(subfolder / file)] for panel, file in record["files"]]
    return {"site": site.name, **scores, "pictures": records}


def load_model(server: ServerRunner, setup: SiteSetup, site: str, model: str) -> nn.Module:
    """Load `LAST`, `AVERAGED` or a model of `patches.controls` at a site; raise ValueError for an unknown model."""
    if model == LAST:
        paste(server.state.models.of(site), setup.partition, setup.network.state_dict())
    elif model == AVERAGED:
        setup.network.load_state_dict(load_weights(server.folder / site / "model.safetensors"))
    else:
        by_name = controls(setup.network)
        if model not in by_name:
            raise ValueError(f"model {model!r} does not exist; use one of {', '.join((LAST, AVERAGED, *by_name))}")
        return by_name[model].to(machine.device())
    return setup.network


def score_round(server: ServerRunner, sites: Mapping[str, Site]) -> None:
    """Save the scores of the models after the last complete round, unless they are already saved (after a resume)."""
    file = _scores_file(server.folder, server.state.round)
    if server.state.round == 0 or file.is_file():
        return
    last, finish = server.state.models, server.method.server.finish
    mean = finish(server.state.aggregator, last) if finish else last
    models = {LAST: last} if mean is last else {LAST: last, AVERAGED: mean}
    write_json(file, {
        kind: {name: _score_quietly(server, site, model, name) for name, site in sites.items()}
        for kind, model in models.items()
    })  # fmt: skip


def _score_quietly(server: ServerRunner, site: Site, models: Models, name: str) -> dict[str, Any]:
    setup = set_up_site(server.job, site, start_weights=server.training.start_weights)
    paste(models.of(name), setup.partition, setup.network.state_dict())
    validation = samples(site, SPLIT, setup.task.spec)
    return evaluation.score_fully(setup.network, setup.task, validation, size=setup.size, split=SPLIT)


def best_scores(
    folder: Path, rounds: int, final: Mapping[str, Scores], models: set[str], metrics: Sequence[Metric]
) -> dict[str, dict[str, Any]]:
    """Return the best round's records by site for each of `BEST_OF`; `final` are the last round's scores by model."""
    sources = {model: source for model, source in BEST_OF.items() if model in models}
    saved = {r: json.loads(_scores_file(folder, r).read_text("utf-8")) for r in range(1, rounds if sources else 1)}
    by_model = {m: {r: by[source] for r, by in saved.items() if source in by} for m, source in sources.items()}
    return {m: best_by_metric(scores | {rounds: final[sources[m]]}, metrics) for m, scores in by_model.items()}


def best_by_metric(scores: Mapping[int, Scores], metrics: Sequence[Metric]) -> dict[str, Any]:
    """Replace each metric in the last round's records by its value in its best round, and add the round.

    The first of equal rounds counts. A metric that no round has at every site keeps the last round's value.
    """
    best_records = {site: {**record, ROUNDS: {}} for site, record in scores[max(scores)].items()}
    for metric in metrics:
        means = {r: statistics.fmean(score(one, metric.name) for one in of.values()) for r, of in scores.items()}
        known = [r for r in sorted(means) if not math.isnan(means[r])]
        if not known:
            continue
        best = (max if metric.higher_is_better else min)(known, key=means.__getitem__)
        for site, record in best_records.items():
            record[metric.name] = scores[best][site][metric.name]
            record[ROUNDS][metric.name] = best
    return best_records


def rounds_table(comparison: Comparison, group: Group, metrics: Sequence[Metric], title: str) -> Table:
    """Tabulate the best round of each metric, by seed."""
    seeds = ", ".join(map(str, sorted({result.run.seed for result in comparison.results})))
    rows = tuple(
        (label, *(", ".join(_best_round(r, group, metric) for r in comparison.of(label)) for metric in metrics))
        for label in comparison.labels
    )
    note = (
        "The round, from 1, with the best mean over the sites; the first of equal rounds. "
        f"{'Order of seeds:' if ',' in seeds else 'Seed'} {seeds}. Pictures and video pairs are from the last round"
    )
    head = ("Method", *(metric.heading for metric in metrics))
    return Table(f"{title}: the rounds of these numbers", head, rows, note=note)


def _best_round(result: Result, group: Group, metric: Metric) -> str:
    record = (result.scores or {}).get("sites", {}).get(group.sites[0], {})
    return str(record.get(ROUNDS, {}).get(metric.name, DASH))


def _scores_file(folder: Path, round: int) -> Path:
    return folder / "server" / f"scores-{round:05d}.json"
