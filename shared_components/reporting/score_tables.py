"""A run's tables of scores, the same in the terminal and on the report's page.

Numbers are written as recorded, in their metrics' units. A dash means that there is no number: an output
that no frame shows and no prediction claims is counted as empty, not scored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared_components.core.card import DASH, Metric
from shared_components.reporting.records import Group, Run, load_run, mean, score
from shared_components.reporting.tables import Table, as_text

_METRICS = {
    "hd95": (
        "HD95 by medpy's definition pools the surface distances of both directions before the 95th percentile; "
        "MONAI's takes the percentile of each direction and then the larger"
    ),
    "rmse_scaled": "scaled: after the prediction was multiplied by the ratio of both medians, frame by frame",
}
_POLICIES = {
    "diagonal": "Dice 0 and the image diagonal as distance",
    "paper": "the released code's first-pixel policy, kept for comparison with the paper",
}


def remarks(metrics: Sequence[Metric]) -> list[str]:
    """Return the remarks on these metrics."""
    return [_METRICS[metric.name] for metric in metrics if metric.name in _METRICS]


def policy_remark(records: Iterable[Mapping[str, Any]]) -> str:
    """Explain the score of a frame in which only one of truth and prediction is empty, if a record names its policy."""
    policies = sorted({str(record["policy"]) for record in records if "policy" in record})
    named = "; ".join(_POLICIES.get(policy, policy) for policy in policies)
    return f"Where only one of truth and prediction is empty a frame scores {named}" if named else ""


def spread_remark(by_site: Mapping[str, Mapping[str, Any]], metric: Metric) -> str:
    """Write each site's mean over videos with their standard deviation, where its record has one; else ""."""
    found = []
    for site, record in by_site.items():
        std, videos = (record.get(key) or {} for key in ("std", "videos"))
        if isinstance(deviation := std.get(metric.name), int | float):
            value = metric.plain_text(score(record, metric.name))
            found.append(f"{site} {value} ± {metric.plain_text(deviation)} of {videos.get('count', DASH)}")
    return f"{metric.label} over videos, mean ± population standard deviation: {', '.join(found)}" if found else ""


def directions(metrics: Sequence[Metric]) -> str:
    """List the metrics by direction, with their units: "Dice: higher is better; ..."."""
    found: dict[str, list[str]] = {}
    for metric in metrics:
        unit = f"in {metric.plain_unit}, " if metric.plain_unit else ""
        way = f"{unit}{'higher' if metric.higher_is_better else 'lower'} is better"
        found.setdefault(way, []).append(metric.label)
    return "; ".join(f"{', '.join(labels)}: {way}" for way, labels in found.items())


MEAN, WORST = "mean over sites", "worst site"
_REDUCE: dict[str, Callable[[Metric, Sequence[float]], float]] = {
    MEAN: lambda metric, values: mean(values),
    WORST: lambda metric, values: metric.worst(values),
}
_EMPTY_HEAD = "empty frames: both / truth / prediction"
_EMPTY_NOTE = (
    "Empty frames: those without the class in truth and prediction (not scored), in the truth only, in the "
    "prediction only"
)


def demo_text(run: Path | Run, *, evaluations: dict[str, dict[str, Any]] | None = None) -> str:
    """Return the tables that end a run in the terminal: validation, then the test split if evaluated, by task."""
    records = run if isinstance(run, Run) else load_run(run, evaluations=evaluations)
    tables = []
    for group in records.groups:
        found = [progress_table(records, group)]
        if tested := records.evaluations_of(group):
            found.append(scores_table(tested, group, title=evaluation_title(records)))
        if len(records.beside) > 1:
            found.append(beside_table(records, group))
        several = len(records.groups) > 1
        tables += [replace(t, title=f"{group.title}: {t.title}") if several else t for t in found]
    return "\n\n".join(map(as_text, tables))


def progress_table(run: Run, group: Group) -> Table:
    """Tabulate the selecting metric on validation: before the first training, and of the last model by output."""
    metric = group.first
    heads = [f"last {name}" for name in group.outputs]
    head = ("site", *(("first mean", *heads, "last mean", "best mean") if heads else ("first", "last", "best")))
    edge = "lowest" if metric.higher_is_better else "highest"
    note = (
        f"first: the model as received in the first round{' that the site was drawn in' if run.draws else ''}; "
        + (f"worst site: the {edge} of the sites, column by column; " if len(group.sites) > 1 else "")
        + f"{DASH}: no frame {'with the class' if heads else 'to score'}, or no report"
    )
    rows = _with_reductions({site: _progress(run, site, group) for site in group.sites}, metric)
    return Table(f"{metric.plain_heading} on the validation split", head, rows, note=note)


def beside_table(run: Run, group: Group) -> Table:
    """Tabulate the selecting metric of models beside each other, by site, on the same frames."""
    metric, names = group.first, list(run.beside)
    values = {site: [score(run.beside[n].get(site, {}), metric.name) for n in names] for site in group.sites}
    title = f"{metric.plain_heading}, {' | '.join(names)}: {_frames(run)}"
    return Table(title, ("site", *names), _with_reductions(values, metric))


def _with_reductions(by_site: Mapping[str, list[float]], metric: Metric) -> tuple[tuple[str, ...], ...]:
    """Write every site's values of one metric; of several sites also each column's mean and worst value."""
    rows = dict(by_site)
    if len(by_site) > 1:
        columns = list(zip(*by_site.values(), strict=True))
        rows |= {name: [reduce(metric, column) for column in columns] for name, reduce in _REDUCE.items()}
    return tuple((name, *map(metric.plain_text, values)) for name, values in rows.items())


def scores_table(by_site: Mapping[str, dict[str, Any]], group: Group, *, title: str) -> Table:
    """Tabulate every metric by site and output, with the counts of empty frames, then mean and worst site.

    Where the task has no outputs a site has one row, and no frame can be empty. The title names the frames.
    """
    rows = [
        (site, name, *_scores([record], name, group), _empty(record, name))
        for site, record in by_site.items()
        for name in group.names
    ]
    notes = [*remarks(group.metrics), *([_EMPTY_NOTE] if group.outputs else [])]
    if len(by_site) > 1:
        records = list(by_site.values())
        rows += [(kind, name, *_scores(records, name, group, kind), "") for kind in _REDUCE for name in group.names]
        notes.append("Worst site: the worst of the sites, column by column")
    if spread := spread_remark(by_site, group.first):
        notes.append(spread)
    if policy := policy_remark(by_site.values()):
        notes.append(policy)
    head = ("site", "class", *(metric.plain_heading for metric in group.metrics), _EMPTY_HEAD)
    if group.outputs:
        return Table(title, head, tuple(rows), labels=2, note=". ".join(notes), grouped=True)
    bare = tuple((row[0], *row[2:-1]) for row in rows)
    return Table(title, (head[0], *head[2:-1]), bare, note=". ".join(notes))


def evaluation_title(run: Run) -> str:
    """Name the frames the evaluation scored: the test split unless the records name another."""
    return f"Scores {_frames(run)}, evaluated after the run"


def _frames(run: Run) -> str:
    splits = sorted({str(record.get("split", "test")) for record in run.evaluations.values()}) or ["test"]
    return f"on the {' and '.join(splits)} split"


def _progress(run: Run, site: str, group: Group) -> list[float]:
    name = group.first.name
    scored = {r: row["metrics"] for r, row in run.rows[site].items() if row.get("metrics")}
    first = score(scored.get(run.first_round(site), {}), name)
    last = run.last_metrics(site)
    best = group.first.best(score(record, name) for record in (*scored.values(), last))
    return [first, *(score(last, name, output) for output in group.outputs), score(last, name), best]


def _scores(records: Sequence[Mapping[str, Any]], name: str, group: Group, reduction: str = MEAN) -> list[str]:
    """Write every metric of one output, reduced over the records."""
    found = {m: [score(record, m.name, name) for record in records] for m in group.metrics}
    return [metric.plain_text(_REDUCE[reduction](metric, values)) for metric, values in found.items()]


def _empty(metrics: dict[str, Any], name: str) -> str:
    """Write the counts of empty frames of a class, e.g. "2 / 3 / 4 of 10"."""
    counts = (metrics.get("empty") or {}).get(name)
    if not isinstance(counts, dict):
        return ""
    shown = " / ".join(str(counts.get(key, DASH)) for key in ("both", "truth", "prediction"))
    return f"{shown} of {metrics['frames']}" if "frames" in metrics else shown
