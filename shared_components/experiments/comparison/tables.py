"""Build the papers' tables by metric and site, by cost and by ablation; best in bold, second best underlined."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

from shared_components.core.card import DASH, Metric, fixed
from shared_components.experiments.comparison.best_round import rounds_table
from shared_components.experiments.comparison.delta import DELTA, delta_of
from shared_components.experiments.comparison.grid import OUTSIDE_PICTURES
from shared_components.experiments.comparison.mixing_figure import LAYOUT, mixing_table
from shared_components.experiments.comparison.results import (
    Comparison,
    Result,
    by_seed,
    common_means,
    contest,
    facts,
    mean_and_deviation,
)
from shared_components.experiments.comparison.versus import versus_table
from shared_components.reporting.records import Group
from shared_components.reporting.tables import Table

BESIDE, EDGES_BESIDE = 2, 4  # metrics beside each other, as in PFedSIS's Table I; with two columns each
WITH_DELTA = ("delta", "pictures")  # layouts whose own table is the improvement over local training
CHANCE_ROW = "Chance"
OF_CLASSES = {"f1": Metric("f1", "F1", True, "%", 100.0, 2), "recall": Metric("recall", "recall", True, "%", 100.0, 2)}
"""What a class has of its own, in the records of tasks that label whole frames or videos."""
UNSEEN_METRICS = ("macro_f1", "expected_cost")  # those that FedSurg ranks by
_ARROWS = {True: "↑", False: "↓"}


@dataclass(frozen=True)
class Column:
    """A heading and a value of every run; with a metric the rows are ranked and have a deviation over seeds."""

    heading: str
    value: Callable[[Result], float]
    digits: int
    factor: float = 1.0
    metric: Metric | None = None


def all_tables(comparison: Comparison, *, grouped: bool = False) -> list[Table]:
    """Return the preset's own table first, then all the others; tables of scores hold one task each.

    Where ``grouped``, two metrics stand beside each other, as in the papers; else every metric has a table.
    """
    own = own_tables(comparison) if comparison.layout != "scores" and comparison.groups else []
    scores: list[Table] = []
    contests: list[Table] = []
    for group in comparison.groups:
        plain = [score_table(comparison, group, metric) for metric in group.metrics]
        scores += _paper_tables(comparison, group) if grouped else plain
        contests += [contest_table(comparison, group), *filter(None, [versus_table(comparison, group)])]
    costs = [cost_table(comparison)] if comparison.layout != "costs" else []
    return [
        *own,
        *(scores or [empty_table(comparison)]),
        *(delta_tables(comparison) if comparison.layout not in WITH_DELTA else []),
        *costs,
        *contests,
        run_table(comparison),
    ]


def own_tables(comparison: Comparison) -> list[Table]:
    """Return the preset's own tables: costs, or of every task the ablation, the held-out site or one metric."""
    if comparison.layout == "costs":
        return [cost_table(comparison)]
    by_task = {
        "ablation": ablation_table, "held-out": held_out_table, OUTSIDE_PICTURES: held_out_table,
        "classes": class_table, "unseen": unseen_table,
    }  # fmt: skip
    if draw := by_task.get(comparison.layout):
        return [draw(comparison, group) for group in comparison.groups]
    if comparison.layout == LAYOUT:
        return [mixing_table(comparison, _score_note(comparison))]
    if comparison.layout == "patches":
        return [table for group in comparison.groups for table in _patches(comparison, group)] or [
            empty_table(comparison)
        ]
    tables = [score_table(comparison, group, group.first) for group in comparison.groups]
    shown = [*delta_tables(comparison), *delta_scores(comparison)] if comparison.layout in WITH_DELTA else tables
    return shown or tables or [empty_table(comparison)]


def empty_table(comparison: Comparison) -> Table:
    """Name the rows where no run has a result, and why."""
    rows = tuple((label,) for label in comparison.labels)
    return Table(comparison.title, ("Method",), rows, note=_score_note(comparison))


def score_table(comparison: Comparison, group: Group, metric: Metric) -> Table:
    """Tabulate one metric: average, every site, worst site, and out of the federation."""
    columns = [*_site_columns(comparison, group, metric), *_edge_columns(comparison, group, metric)]
    direction = "higher" if metric.higher_is_better else "lower"
    title = f"{_title(comparison, group)}: {metric.heading}, {direction} is better"
    return _table(title, comparison, columns, _score_note(comparison))


def _title(comparison: Comparison, group: Group) -> str:
    """Name the task where there are several."""
    return f"{comparison.title}; {group.title}" if len(comparison.groups) > 1 else comparison.title


def _paper_tables(comparison: Comparison, group: Group) -> list[Table]:
    """Tabulate as PFedSIS's Table I: two metrics beside each other; worst and unseen sites in tables below."""
    title = _title(comparison, group)
    edges = " and ".join(column.heading.lower() for column in _edge_columns(comparison, group, group.first))
    tables = []
    for heading, columns_of, beside in (
        (title, _site_columns, BESIDE),
        (f"{title}: {edges}", _edge_columns, EDGES_BESIDE),
    ):
        for first in range(0, len(group.metrics), beside):
            found = {metric: columns_of(comparison, group, metric) for metric in group.metrics[first : first + beside]}
            columns = [column for part in found.values() for column in part]
            heads = tuple((f"{m.heading} {_ARROWS[m.higher_is_better]}", len(part)) for m, part in found.items())
            tables.append(replace(_table(heading, comparison, columns, _score_note(comparison)), groups=heads))
    return tables


def _site_columns(comparison: Comparison, group: Group, metric: Metric) -> list[Column]:
    sites = [_column_of(metric, site, methodcaller("value", metric, site)) for site in group.sites]
    return [_column_of(metric, "Average", methodcaller("average", group, metric)), *sites]


def _edge_columns(comparison: Comparison, group: Group, metric: Metric) -> list[Column]:
    columns = [_column_of(metric, "Worst site", methodcaller("worst", group, metric))]
    alone = len(comparison.groups) == 1
    if any(result.run.held_out and (alone or result.out_of(group)) for result in comparison.results):
        columns.append(_column_of(metric, "Out of federation", methodcaller("held_out", group, metric)))
    return columns


def _column_of(metric: Metric, heading: str, value: Callable[[Result], float]) -> Column:
    return Column(heading, value, metric.digits, metric.factor, metric)


def delta_tables(comparison: Comparison) -> list[Table]:
    """Tabulate SurgFed's Eq. (9), the improvement over local training; no table where no row is local training."""
    delta = delta_of(comparison)
    if delta is None:
        return []
    sites = [_column_of(DELTA, site, partial(delta.of_site, site=site)) for site in comparison.sites]
    columns = [_column_of(DELTA, "Average", delta.average), *sites]
    by_task = {
        group.card.kind: " and ".join(metric.label for metric in delta.metrics(group)) for group in comparison.groups
    }
    metrics = "; ".join(f"{kind} by {labels}" for kind, labels in by_task.items())
    note = (
        "SurgFed, Eq. (9): the mean over a site's metrics of the change relative to the mean of local training, "
        f"positive where better, then the mean over sites ({metrics}); {_score_note(comparison)}"
    )
    return [_table(f"{comparison.title}: {DELTA.heading} over local training", comparison, columns, note)]


def delta_scores(comparison: Comparison) -> list[Table]:
    """Tabulate what enters Eq. (9), site beside site, as SurgFed's Table I; none where `delta_tables` has none."""
    delta = delta_of(comparison)
    if delta is None:
        return []
    columns = [
        _column_of(m, f"{site}, {m.heading} {_ARROWS[m.higher_is_better]}", methodcaller("value", m, site))
        for group in comparison.groups
        for site in group.sites
        for m in delta.metrics(group)
    ]
    return [
        _table(f"{comparison.title}: the scores behind {DELTA.label}", comparison, columns, _score_note(comparison))
    ]


def ablation_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate the averages of all metrics beside the ticks of what is switched on."""
    columns = [_column_of(m, m.heading, methodcaller("average", group, m)) for m in group.metrics]
    note = f"averages over the sites; {_score_note(comparison)}"
    return _table(_title(comparison, group), comparison, columns, note)


def _patches(comparison: Comparison, group: Group) -> list[Table]:
    """Tabulate as FL-EndoViT's Tables 1 and 7: patches below limits and the loss, beside the optimizer steps."""
    shown = [metric for metric in group.metrics if metric.name.startswith("below_")] + [
        metric for metric in group.metrics if metric.name == "normalised_mse"
    ]
    columns = [_column_of(m, m.heading, methodcaller("average", group, m)) for m in shown]
    columns.append(Column("optimizer steps", methodcaller("cost", "steps"), 0))
    chosen = "which choose the rounds" if comparison.best_of_rounds else "nothing is chosen"
    note = (
        f"averages over the {comparison.split} videos of {', '.join(group.sites)}, a site as much as another, on which "
        f"nobody trains and {chosen}; steps of all sites together; {_score_note(comparison)}"
    )
    title = _title(comparison, group)
    rounds = [rounds_table(comparison, group, shown, title)] if comparison.best_of_rounds else []
    return [_table(title, comparison, columns, note), *rounds]


def held_out_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate all metrics at the site where nobody trained, as FedST's Tables 3 and 8 do."""
    columns = [_column_of(m, m.heading, methodcaller("held_out", group, m)) for m in group.metrics]
    note = "the model that a hospital outside the federation gets, on its test videos; " + _score_note(comparison)
    if any(((result.scores or {}).get("held_out") or {}).get("merged") for result in comparison.results):
        note += "; that site knows fewer classes, which are the models' merged"
    return _table(f"{_title(comparison, group)}: out of federation", comparison, columns, note)


def unseen_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate the sites' mean beside the site outside, by the metrics that FedSurg ranks by."""
    columns = []
    for metric in [m for m in group.metrics if m.name in UNSEEN_METRICS] or [group.first]:
        mean, outside = methodcaller("average", group, metric), methodcaller("held_out", group, metric)
        columns += [
            _column_of(metric, f"{metric.heading} {_ARROWS[metric.higher_is_better]}, centres", mean),
            _column_of(metric, "unseen centre", outside),
        ]
    return _table(_title(comparison, group), comparison, columns, _score_note(comparison))


def class_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate as FL-EndoViT's Table 11: F1 and recall of each class, which the paper calls its accuracy."""
    columns = [
        _column_of(metric, f"{name}, {metric.heading}", partial(_of_class, sites=group.sites, name=name, key=key))
        for key, metric in OF_CLASSES.items()
        for name in group.card.outputs
    ]
    note = f"averages over the sites that have the class; {_score_note(comparison)}"
    return _table(_title(comparison, group), comparison, columns, note)


def _of_class(result: Result, sites: Sequence[str], name: str, key: str) -> float:
    records = [(result.scores or {}).get("sites", {}).get(site, {}).get("classes", {}).get(name) for site in sites]
    values = [one[key] for one in records if isinstance(one, dict) and one.get(key) is not None]
    return mean_and_deviation(values)[0]


def cost_table(comparison: Comparison) -> Table:
    """Tabulate the costs of a method: time of a frame, parameters, bytes and seconds of a round."""
    columns = [
        Column("Inference ms/frame", methodcaller("cost", "ms_frame"), 2),
        Column("Frames/s of a video", methodcaller("cost", "frames_per_second"), 2),
        Column("Parameters, site (K)", methodcaller("cost", "parameters_site"), 3, 1e-3),
        Column("Parameters, server (K)", methodcaller("cost", "parameters_server"), 1, 1e-3),
        Column("Trained MB", methodcaller("cost", "parameters_trained"), 2, 4e-6),
        Column("Server MB", methodcaller("cost", "parameters_server"), 2, 4e-6),
        Column("Up MB/round", methodcaller("cost", "bytes_up"), 1, 1e-6),
        Column("Down MB/round", methodcaller("cost", "bytes_down"), 1, 1e-6),
        Column("Slowest site s/round", methodcaller("cost", "seconds_round_slowest"), 2),
        Column("Server s/round", methodcaller("cost", "seconds_aggregation"), 3),
    ]
    note = (
        "means over seeds; inference is of a whole sample, such as a clip, frames per second are those of a video that "
        "is segmented frame by frame; MB of one site; a site's seconds include the validation of the model it "
        "received; parameters at the server are those it trains itself, for all sites together; MB of "
        "parameters are of 4 bytes each (of 2 in SurgFed's paper); times of a machine "
        "that may have worked on other runs at the same time (--jobs 1 avoids that)"
    )
    title = comparison.title if comparison.layout == "costs" else "Cost"
    return _table(title, replace(comparison, tick_names=()), columns, note)


def contest_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate whether the best two differ, metric by metric."""
    rows = []
    for one in [found for metric in group.metrics if (found := contest(comparison, group, metric))]:
        p_values = [one.untested or fixed(p, 4) for p in (one.t_test, one.wilcoxon)]
        difference = one.metric.text(one.difference)
        rows.append((one.metric.heading, one.best, one.second, difference, str(one.seeds), *p_values))
    head = ("Metric", "Best", "Second", "Difference", "Seeds", "Paired t-test p", "Wilcoxon p")
    note = (
        "two-sided, paired by seed, whose value is the mean over sites: sites of one federation share models, and "
        "frames of one video scenes, so that neither are repetitions. Wilcoxon's p cannot be below 2 / 2^seeds, which "
        "is 0.25 of three; seeds share sites, and say nothing of other hospitals"
    )
    title = "Do the best two differ?" + (f" {group.title}" if len(comparison.groups) > 1 else "")
    return Table(title, head, tuple(rows), 3, note)


def run_table(comparison: Comparison) -> Table:
    """Tabulate where every number comes from."""
    rows = []
    for result in comparison.results:
        info, seconds = result.info or {}, (result.scores or {}).get("seconds", {})
        where = f"runs/{result.folder.parent.name}/{result.folder.name}" if result.folder else result.reason
        spent = [seconds.get(key) for key in ("training", "scoring")]
        texts = (DASH if value is None else fixed(value, 0) for value in spent)
        rows.append((result.run.variant.label, str(result.run.seed), where, str(info.get("commit", DASH)), *texts))
    note = (
        "every run's folder holds run.json (job, commit, seed, hardware), server/rounds.jsonl, every site's models "
        f"and scores.json; training s: all rounds, {DASH}: trained in several attempts; scoring s: afterwards, every "
        "site's best model on its test videos"
    )
    known = facts(comparison)
    if ", " in known["commit"]:
        note += "; NOT all runs are of one commit"
    if known["hardware"]:
        note += f"; {known['hardware']}"
    head = ("Method", "Seed", "Run", "Commit", "Training s", "Scoring s")
    return Table("Runs", head, tuple(rows), 4, note)


def _score_note(comparison: Comparison) -> str:
    known = facts(comparison)
    many = ", " in known["seeds"]
    text = f"mean ± sample standard deviation over seeds {known['seeds']}" if many else f"seed {known['seeds']}"
    text += f"; rounds: {known['rounds']}, {known['size']}, start: {known['start']}; "
    text += f"{comparison.models}, scored on {comparison.split} videos at the original resolution"
    text += f"; {comparison.remark}" if comparison.remark else ""
    return text + "".join(_missing(comparison.of(label)) for label in comparison.labels)


def _missing(row: Sequence[Result]) -> str:
    """Name the seeds of a row that have no scores, and why."""
    failed = [result for result in row if result.scores is None]
    if not failed:
        return ""
    label, reason = failed[0].run.variant.label, failed[0].reason
    if len(failed) == len(row):
        return f"; {label}: {reason}"
    return f"; {label}: without seed {', '.join(str(result.run.seed) for result in failed)} ({reason})"


def _table(title: str, comparison: Comparison, columns: Sequence[Column], note: str) -> Table:
    """Tabulate columns of numbers, after the rows' ticks where the preset has any."""
    names = comparison.tick_names
    texts: list[list[str]] = []
    marks: dict[tuple[int, int], str] = {}
    partly = False  # some row lacks a seed that another has
    for number, column in enumerate(columns, start=1 + len(names)):
        found = by_seed(comparison, column.value)
        texts.append([_text(column, *mean_and_deviation(list(row.values()))) for row in found.values()])
        ranks = _ranks(column, list(common_means(comparison, column.value).values()))
        marks |= {(row, number): rank for row, rank in enumerate(ranks) if rank}
        partly |= column.metric is not None and len({frozenset(row) for row in found.values() if row}) > 1
    rows = []
    for number, label in enumerate(comparison.labels):
        ticks = comparison.of(label)[0].run.variant.ticks or (False,) * len(names)
        shown = ticks if names else ()
        rows.append((label, *("✓" if on else "" for on in shown), *(column[number] for column in texts)))
    if (one := comparison.chance) and all(column.metric for column in columns):
        values = [column.value(one) for column in columns]
        cells = (_text(column, value, math.nan) for column, value in zip(columns, values, strict=True))
        if not all(map(math.isnan, values)):
            rows.append((CHANCE_ROW, *("" for _ in names), *cells))
    head = ("Method", *names, *(column.heading for column in columns))
    note += "; ranked by those seeds alone at which all rows with a number have one" if partly else ""
    return Table(title, head, tuple(rows), 1 + len(names), note, marks=marks)


def _text(column: Column, mean: float, deviation: float) -> str:
    text = fixed(mean * column.factor, column.digits)
    if column.metric is None or math.isnan(deviation):
        return text
    return f"{text} ± {fixed(deviation * column.factor, column.digits)}"


def _ranks(column: Column, means: Sequence[float]) -> list[str]:
    """Name the best and the second of a column, as rounded; none where all have the same; no score of 0."""
    rounded = [round(mean * column.factor, column.digits) for mean in means]
    known = {value for value in rounded if not math.isnan(value)}
    if column.metric is None or len(known) < 2:
        return [""] * len(means)
    best, second, *_ = sorted(known, reverse=column.metric.higher_is_better)
    marks = {second: "second", best: "best"} | ({0.0: ""} if column.metric.higher_is_better else {})
    return [marks.get(value, "") for value in rounded]
