"""Build a run's tables of scores for the terminal and the report's page.

Numbers are unscaled, in the units of their metrics. A dash means that there is no number: a class that is absent in
all frames and predictions is counted as empty and not scored.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared_components.core.card import DASH, Metric
from shared_components.reporting.records import Group, Run, load_run, mean, score
from shared_components.reporting.tables import Table, as_text

_METRICS = {
    "hd95": (
        "HD95 follows medpy's definition: the 95th percentile of the pooled surface distances of both directions. "
        "HD95 (MONAI) is the larger of the two directed percentiles"
    ),
    "rmse_scaled": "scaled: each predicted frame is multiplied by the ratio of both medians before scoring",
}
_POLICIES = {
    "diagonal": "Dice 0 and the image diagonal as distance",
    "paper": "the released code's first-pixel policy, kept for comparison with the paper",
}


def remarks(metrics: Sequence[Metric]) -> list[str]:
    """Return the remarks on these metrics."""
    return [_METRICS[metric.name] for metric in metrics if metric.name in _METRICS]


def policy_remark(records: Iterable[Mapping[str, Any]]) -> str:
    """Explain the scores of frames with only an empty truth or only an empty prediction, if recorded."""
    policies = sorted({str(record["policy"]) for record in records if "policy" in record})
    named = "; ".join(_POLICIES.get(policy, policy) for policy in policies)
    return f"If only the truth or only the prediction is empty, a frame scores {named}" if named else ""


def spread_remark(by_site: Mapping[str, Mapping[str, Any]], metric: Metric) -> str:
    """Return the sites' mean and standard deviation over videos, or "" if no record has them."""
    texts = []
    for site, record in by_site.items():
        std, videos = (record.get(key) or {} for key in ("std", "videos"))
        if isinstance(deviation := std.get(metric.name), int | float):
            value = metric.plain_text(score(record, metric.name))
            texts.append(f"{site} {value} ± {metric.plain_text(deviation)} ({videos.get('count', DASH)} videos)")
    return f"{metric.label} over videos, mean ± population standard deviation: {', '.join(texts)}" if texts else ""


def directions(metrics: Sequence[Metric]) -> str:
    """Return the metrics by direction and unit: "Dice: higher is better; ..."."""
    labels_by_way: defaultdict[str, list[str]] = defaultdict(list)
    for metric in metrics:
        unit = f"in {metric.plain_unit}, " if metric.plain_unit else ""
        labels_by_way[f"{unit}{'higher' if metric.higher_is_better else 'lower'} is better"].append(metric.label)
    return "; ".join(f"{', '.join(labels)}: {way}" for way, labels in labels_by_way.items())


MEAN, WORST = "mean over sites", "worst site"
_REDUCE: dict[str, Callable[[Metric, Sequence[float]], float]] = {
    MEAN: lambda metric, values: mean(values),
    WORST: lambda metric, values: metric.worst(values),
}
_EMPTY_NOTE = (
    "Empty frames: number of frames without the class in both truth and prediction (not scored), only in the truth, "
    "and only in the prediction"
)


def demo_text(run: Path | Run, *, evaluations: dict[str, dict[str, Any]] | None = None) -> str:
    """Return the tables at the end of a run, by task: validation, and the test split if it was evaluated."""
    records = run if isinstance(run, Run) else load_run(run, evaluations=evaluations)
    tables = []
    for group in records.groups:
        own = [progress_table(records, group)]
        if tested := records.evaluations_of(group):
            own.append(scores_table(tested, group, title=evaluation_title(records)))
        if len(records.compared) > 1:
            own.append(comparison_table(records, group))
        several = len(records.groups) > 1
        tables += [replace(t, title=f"{group.title}: {t.title}") if several else t for t in own]
    return "\n\n".join(map(as_text, tables))


def progress_table(run: Run, group: Group) -> Table:
    """Tabulate the selection metric on validation: of the first, last and best model, and by output."""
    metric = group.first
    heads = [f"last {name}" for name in group.outputs]
    head = ("site", *(("first mean", *heads, "last mean", "best mean") if heads else ("first", "last", "best")))
    edge = "lowest" if metric.higher_is_better else "highest"
    worst = f"worst site: the {edge} value of each column; " if len(group.sites) > 1 else ""
    dash = f"{DASH}: no frame {'with the class' if heads else 'to score'}, or no report"
    note = f"first: the model received in the site's first round; {worst}{dash}"
    rows = _with_reductions({site: _progress(run, site, group) for site in group.sites}, metric)
    return Table(f"{metric.plain_heading} on the validation split", head, rows, note=note)


def comparison_table(run: Run, group: Group) -> Table:
    """Tabulate the selection metric of several models on the same frames, by site."""
    metric, names = group.first, list(run.compared)
    values = {site: [score(run.compared[n].get(site, {}), metric.name) for n in names] for site in group.sites}
    title = f"{metric.plain_heading}, {' | '.join(names)}: on the {_splits(run)} split"
    return Table(title, ("site", *names), _with_reductions(values, metric))


def _with_reductions(by_site: Mapping[str, list[float]], metric: Metric) -> tuple[tuple[str, ...], ...]:
    """Format each site's values of a metric; several sites also get each column's mean and worst value."""
    rows = dict(by_site)
    if len(by_site) > 1:
        columns = list(zip(*by_site.values(), strict=True))
        rows |= {name: [reduce(metric, column) for column in columns] for name, reduce in _REDUCE.items()}
    return tuple((name, *map(metric.plain_text, values)) for name, values in rows.items())


def scores_table(by_site: Mapping[str, dict[str, Any]], group: Group, *, title: str) -> Table:
    """Tabulate all metrics and the counts of empty frames by site and output, then the mean and the worst site.

    A task without outputs has one row per site and no counts of empty frames. The title names the frames.
    """
    names = (*group.outputs, "mean")
    cells = [(site, record, name) for site, record in by_site.items() for name in names]
    rows = [(site, name, *_scores([record], name, group), _empty(record, name)) for site, record, name in cells]
    notes = [*remarks(group.metrics), *([_EMPTY_NOTE] if group.outputs else [])]
    if len(by_site) > 1:
        records = list(by_site.values())
        rows += [(kind, name, *_scores(records, name, group, kind), "") for kind in _REDUCE for name in names]
        notes.append("Worst site: the worst value of each column")
    note = ". ".join(filter(None, [*notes, spread_remark(by_site, group.first), policy_remark(by_site.values())]))
    headings = [metric.plain_heading for metric in group.metrics]
    if group.outputs:
        head = ("site", "class", *headings, "empty frames: both / truth / prediction")
        return Table(title, head, tuple(rows), labels=2, note=note, grouped=True)
    return Table(title, ("site", *headings), tuple((row[0], *row[2:-1]) for row in rows), note=note)


def evaluation_title(run: Run) -> str:
    """Return the title of an evaluation, with its split: "test" unless the records name another."""
    return f"Scores on the {_splits(run)} split, evaluated after training"


def _splits(run: Run) -> str:
    return " and ".join(sorted({str(record.get("split", "test")) for record in run.evaluations.values()})) or "test"


def _progress(run: Run, site: str, group: Group) -> list[float]:
    name = group.first.name
    scored = {r: row["metrics"] for r, row in run.rows[site].items() if row.get("metrics")}
    first = score(scored.get(run.first_round(site), {}), name)
    last = run.last_metrics(site)
    best = group.first.best(score(record, name) for record in (*scored.values(), last))
    return [first, *(score(last, name, output) for output in group.outputs), score(last, name), best]


def _scores(records: Sequence[Mapping[str, Any]], name: str, group: Group, reduction: str = MEAN) -> list[str]:
    """Format all metrics of an output, reduced over the records."""
    by_metric = {m: [score(record, m.name, name) for record in records] for m in group.metrics}
    return [metric.plain_text(_REDUCE[reduction](metric, values)) for metric, values in by_metric.items()]


def _empty(metrics: dict[str, Any], name: str) -> str:
    """Format the counts of empty frames of a class: "2 / 3 / 4 of 10"."""
    counts = (metrics.get("empty") or {}).get(name)
    if not isinstance(counts, dict):
        return ""
    shown = " / ".join(str(counts.get(key, DASH)) for key in ("both", "truth", "prediction"))
    return f"{shown} of {metrics['frames']}" if "frames" in metrics else shown
