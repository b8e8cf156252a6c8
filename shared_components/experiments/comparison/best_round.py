"""Score every round and find the best round of each metric, for FL-EndoViT's Table 7.

The best round has the best mean over the sites. The validation videos both choose and score this round, so the scores
are optimistic for other videos.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.core.card import DASH, Metric
from shared_components.data.site import Site
from shared_components.experiments.comparison.models import model_after_round, score_model
from shared_components.experiments.comparison.plan import AVERAGED, BEST_OF, LAST
from shared_components.experiments.comparison.results import Comparison, Result
from shared_components.federation.server.runner import ServerRunner
from shared_components.reporting.records import Group, score
from shared_components.reporting.tables import Table

ROUNDS = "best_rounds"
"""Key of a site's record: the round of each metric, from 1."""
Scores = Mapping[str, Mapping[str, Any]]
"""By site."""


def score_round(server: ServerRunner, sites: Mapping[str, Site]) -> None:
    """Score the models of the round that has just ended on every site's validation videos, and keep the scores.

    A round that has scores keeps them, such as the last one before an interruption.
    """
    file = _file(server.folder, server.state.round)
    if server.state.round == 0 or file.is_file():
        return
    made = {which: model_after_round(server, which) for which in (LAST, AVERAGED)}
    write_json(file, {
        which: {name: score_model(server, site, models.of(name)) for name, site in sites.items()}
        for which, models in made.items() if models is not None
    })  # fmt: skip


def best_scores(
    folder: Path, rounds: int, final: Mapping[str, Scores], wanted: set[str], metrics: Sequence[Metric]
) -> dict[str, dict[str, Any]]:
    """Return the records of the rows that want the best round, by their kind and by site.

    Args:
        folder: Of the run.
        rounds: How many there were.
        final: The scores after the last round, by model.
        wanted: Kinds of models; others than `BEST_OF` has are left.
        metrics: Of the sites' task.
    """
    kinds = {kind: of for kind, of in BEST_OF.items() if kind in wanted}
    before = {r: json.loads(_file(folder, r).read_text("utf-8")) for r in range(1, rounds if kinds else 1)}
    return {
        kind: best_by_metric({r: one[of] for r, one in before.items() if of in one} | {rounds: final[of]}, metrics)
        for kind, of in kinds.items()
    }


def best_by_metric(scores: Mapping[int, Scores], metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return the last round's records with every metric's best value over the rounds, and the rounds of these values.

    The first of equal rounds counts. A metric that no round has at every site stays as the last round has it.
    """
    last = scores[max(scores)]
    found = {site: {**record, ROUNDS: {}} for site, record in last.items()}
    for metric in metrics:
        means = {r: statistics.fmean(score(one, metric.name) for one in of.values()) for r, of in scores.items()}
        known = [r for r in sorted(means) if not math.isnan(means[r])]
        if not known:
            continue
        best = (max if metric.higher_is_better else min)(known, key=means.__getitem__)
        for site, record in found.items():
            record[metric.name] = scores[best][site][metric.name]
            record[ROUNDS][metric.name] = best
    return found


def rounds_table(comparison: Comparison, group: Group, metrics: Sequence[Metric], title: str) -> Table:
    """Tabulate the round of each number, seed by seed."""
    seeds = ", ".join(map(str, sorted({result.run.seed for result in comparison.results})))
    rows = tuple(
        (label, *(", ".join(_round(one, group, metric) for one in comparison.of(label)) for metric in metrics))
        for label in comparison.labels
    )
    note = (
        "the round, from 1, after which the mean over the sites is best, the first of equal ones; "
        f"{'of seeds' if ',' in seeds else 'seed'} {seeds}; pictures and pairs of videos are of the last round"
    )
    head = ("Method", *(metric.heading for metric in metrics))
    return Table(f"{title}: the rounds of these numbers", head, rows, note=note)


def _round(result: Result, group: Group, metric: Metric) -> str:
    record = (result.scores or {}).get("sites", {}).get(group.sites[0], {})
    return str(record.get(ROUNDS, {}).get(metric.name, DASH))


def _file(folder: Path, round: int) -> Path:
    return folder / "server" / f"scores-{round:05d}.json"
