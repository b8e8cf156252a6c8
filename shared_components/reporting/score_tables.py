"""Build a run's tables of scores for the terminal and the report's page.

Numbers are unscaled, in the units of their metrics. A dash means that there is no number: a class that is absent in
all frames and predictions is counted as empty and not scored.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared_components.common.counted import first_few
from shared_components.core.card import DASH, Metric
from shared_components.reporting.many_sites import (
    MOST,
    NAMED,
    are_many,
    folded,
    reductions,
    worst_first,
    worst_last_models,
)
from shared_components.reporting.records import Group, Run, load_run, score
from shared_components.reporting.tables import Table, as_text

Rows = tuple[tuple[str, ...], ...]
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
    return (
        f"{metric.label} over videos, mean ± population standard deviation: {first_few(texts, most=MOST)}"
        if texts
        else ""
    )


def directions(metrics: Sequence[Metric]) -> str:
    """Return the metrics by direction and unit: "Dice: higher is better; ..."."""
    labels_by_way: defaultdict[str, list[str]] = defaultdict(list)
    for metric in metrics:
        unit = f"in {metric.plain_unit}, " if metric.plain_unit else ""
        labels_by_way[f"{unit}{'higher' if metric.higher_is_better else 'lower'} is better"].append(metric.label)
    return "; ".join(f"{', '.join(labels)}: {way}" for way, labels in labels_by_way.items())


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
    sites = worst_last_models(run, group) if are_many(group.sites) else group.sites
    values = {site: _progress(run, site, group) for site in sites}
    return _with_reductions(
        Table(f"{metric.plain_heading} on the validation split", head, (), note=note), values, metric
    )


def comparison_table(run: Run, group: Group) -> Table:
    """Tabulate the selection metric of several models on the same frames, by site."""
    metric, names = group.first, list(run.compared)
    own = {site: run.compared[names[-1]].get(site, {}) for site in group.sites}
    sites = worst_first(own, metric) if are_many(group.sites) else group.sites
    values = {site: [score(run.compared[n].get(site, {}), metric.name) for n in names] for site in sites}
    title = f"{metric.plain_heading}, {' | '.join(names)}: on the {_splits(run)} split"
    return _with_reductions(Table(title, ("site", *names), ()), values, metric)


def _with_reductions(table: Table, by_site: Mapping[str, list[float]], metric: Metric) -> Table:
    """Add each site's values of a metric, and with several sites each column's mean and worst value.

    With many sites the summary rows come first, and most sites are folded.
    """
    sites = tuple((site, *map(metric.plain_text, values)) for site, values in by_site.items())
    if len(by_site) < 2:
        return replace(table, rows=sites)
    columns, many = list(zip(*by_site.values(), strict=True)), are_many(tuple(by_site))
    summary = tuple((name, *map(text, columns)) for name, text in reductions(metric, many=many).items())
    return _folded(table, sites, summary) if many else replace(table, rows=(*sites, *summary))


def _folded(table: Table, sites: Rows, summary: Rows) -> Table:
    """Fill a table with the summary rows and the rows of many sites, and fold most sites."""
    each = len(sites) // len(dict.fromkeys(row[0] for row in sites))  # rows of a site
    return folded(replace(table, rows=(*summary, *sites)), len(summary) + NAMED * each)


def scores_table(by_site: Mapping[str, dict[str, Any]], group: Group, *, title: str) -> Table:
    """Tabulate all metrics and the counts of empty frames by site and output, then the mean and the worst site.

    A task without outputs has one row per site and no counts of empty frames. The title names the frames.
    """
    names, many = (*group.outputs, "mean"), are_many(tuple(by_site))
    if many:
        by_site = {site: by_site[site] for site in worst_first(by_site, group.first)}
    cells = [(site, record, name) for site, record in by_site.items() for name in names]
    rows = [(site, name, *_scores(record, name, group), _empty(record, name)) for site, record, name in cells]
    notes = [*remarks(group.metrics), *([_EMPTY_NOTE] if group.outputs else [])]
    summary = _summary(list(by_site.values()), names, group, many=many) if len(by_site) > 1 else []
    if summary:
        notes.append("Worst site: the worst value of each column")
    note = ". ".join(filter(None, [*notes, spread_remark(by_site, group.first), policy_remark(by_site.values())]))
    headings = [metric.plain_heading for metric in group.metrics]
    if group.outputs:
        head = ("site", "class", *headings, "empty frames: both / truth / prediction")
        table = Table(title, head, (), labels=2, note=note, grouped=True)
    else:
        table = Table(title, ("site", *headings), (), note=note)
        rows, summary = ([(row[0], *row[2:-1]) for row in part] for part in (rows, summary))
    return _folded(table, tuple(rows), tuple(summary)) if many else replace(table, rows=(*rows, *summary))


def _summary(
    records: Sequence[Mapping[str, Any]], names: Sequence[str], group: Group, *, many: bool
) -> list[tuple[str, ...]]:
    """Return the summary rows over the sites, one per reduction and output."""
    by_metric = [reductions(metric, many=many) for metric in group.metrics]
    columns = {name: [[score(record, m.name, name) for record in records] for m in group.metrics] for name in names}
    return [
        (kind, name, *(texts[kind](values) for texts, values in zip(by_metric, columns[name], strict=True)), "")
        for kind in by_metric[0]
        for name in names
    ]


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


def _scores(record: Mapping[str, Any], name: str, group: Group) -> list[str]:
    """Format all metrics of an output."""
    return [metric.plain_text(score(record, metric.name, name)) for metric in group.metrics]


def _empty(metrics: dict[str, Any], name: str) -> str:
    """Format the counts of empty frames of a class: "2 / 3 / 4 of 10"."""
    counts = (metrics.get("empty") or {}).get(name)
    if not isinstance(counts, dict):
        return ""
    shown = " / ".join(str(counts.get(key, DASH)) for key in ("both", "truth", "prediction"))
    return f"{shown} of {metrics['frames']}" if "frames" in metrics else shown
