"""Build a comparison's tables in the papers' layouts; the best value is bold, the second best underlined."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

from shared_components.core.card import DASH, Metric, fixed
from shared_components.experiments.comparison import results
from shared_components.experiments.comparison.delta import DELTA, delta_of
from shared_components.experiments.comparison.mixing_figure import LAYOUT, mixing_table
from shared_components.experiments.comparison.models import rounds_table
from shared_components.experiments.comparison.pictures import OUTSIDE_PICTURES
from shared_components.experiments.comparison.results import Comparison, Result, common_means, mean_and_deviation
from shared_components.experiments.comparison.versus import versus_table
from shared_components.reporting.records import Group
from shared_components.reporting.tables import Table

BESIDE, EDGES_BESIDE = 2, 4  # metrics per table with all sites, or with two columns, as in PFedSIS's Table I
WITH_DELTA = ("delta", "pictures")  # layouts that show the improvement over local training first
CHANCE_ROW = "Chance"
CLASS_METRICS = [Metric("f1", "F1", True, "%", 100.0, 2), Metric("recall", "recall", True, "%", 100.0, 2)]
UNSEEN_METRICS = ("macro_f1", "expected_cost")  # metrics of FedSurg's ranking
_ARROWS = {True: "↑", False: "↓"}


@dataclass(frozen=True)
class Column:
    """Heading and value of each run; only with a metric are rows ranked and deviations over seeds shown."""

    heading: str
    value: Callable[[Result], float]
    digits: int
    factor: float = 1.0
    metric: Metric | None = None


def all_tables(comparison: Comparison) -> list[Table]:
    """Return the preset's own tables, then the tables of scores of each task, costs, tests and runs."""
    own = own_tables(comparison) if comparison.layout != "scores" and comparison.groups else []
    scores = [table for group in comparison.groups for table in _paper_tables(comparison, group)]
    contests = [build(comparison, group) for group in comparison.groups for build in (contest_table, versus_table)]
    return [
        *own,
        *(scores or [empty_table(comparison)]),
        *(delta_tables(comparison) if comparison.layout not in WITH_DELTA else []),
        *([cost_table(comparison)] if comparison.layout != "costs" else []),
        *filter(None, contests),
        run_table(comparison),
    ]


def own_tables(comparison: Comparison) -> list[Table]:
    """Return the tables of the preset's layout; by default the selecting metric of each task."""
    if comparison.layout == "costs":
        return [cost_table(comparison)]
    if comparison.layout == LAYOUT:
        return [mixing_table(comparison, _score_note(comparison))]
    if comparison.layout == "patches":
        return [table for g in comparison.groups for table in _patches(comparison, g)] or [empty_table(comparison)]
    by_layout = {
        "ablation": ablation_table, "held-out": held_out_table, OUTSIDE_PICTURES: held_out_table,
        "classes": class_table, "unseen": unseen_table,
    }  # fmt: skip
    if build := by_layout.get(comparison.layout):
        return [build(comparison, group) for group in comparison.groups]
    deltas = [*delta_tables(comparison), *delta_scores(comparison)] if comparison.layout in WITH_DELTA else []
    tables = [score_table(comparison, group, group.first) for group in comparison.groups]
    return deltas or tables or [empty_table(comparison)]


def empty_table(comparison: Comparison) -> Table:
    """List the rows of a comparison without results, with the reasons in the note."""
    return _table(comparison.title, comparison, [])


def score_table(comparison: Comparison, group: Group, metric: Metric) -> Table:
    """Tabulate one metric: average, each site, worst site and held-out site."""
    columns = [*_site_columns(comparison, group, metric), *_edge_columns(comparison, group, metric)]
    direction = "higher" if metric.higher_is_better else "lower"
    return _table(f"{_title(comparison, group)}: {metric.heading}, {direction} is better", comparison, columns)


def _title(comparison: Comparison, group: Group) -> str:
    return f"{comparison.title}; {group.title}" if len(comparison.groups) > 1 else comparison.title


def _paper_tables(comparison: Comparison, group: Group) -> list[Table]:
    """Tabulate as PFedSIS's Table I: two metrics side by side, worst and held-out sites in a table below."""
    title = _title(comparison, group)
    edges = " and ".join(column.heading.lower() for column in _edge_columns(comparison, group, group.first))
    tables = []
    for heading, columns_of, beside in (
        (title, _site_columns, BESIDE), (f"{title}: {edges}", _edge_columns, EDGES_BESIDE)
    ):  # fmt: skip
        for first in range(0, len(group.metrics), beside):
            by_metric = {m: columns_of(comparison, group, m) for m in group.metrics[first : first + beside]}
            columns = [column for part in by_metric.values() for column in part]
            heads = tuple((f"{m.heading} {_ARROWS[m.higher_is_better]}", len(part)) for m, part in by_metric.items())
            tables.append(replace(_table(heading, comparison, columns), groups=heads))
    return tables


def _site_columns(comparison: Comparison, group: Group, metric: Metric) -> list[Column]:
    sites = [_column(metric, site, methodcaller("value", metric, site)) for site in group.sites]
    return [_column(metric, "Average", methodcaller("average", group, metric)), *sites]


def _edge_columns(comparison: Comparison, group: Group, metric: Metric) -> list[Column]:
    columns = [_column(metric, "Worst site", methodcaller("worst", group, metric))]
    one_task = len(comparison.groups) == 1
    if any(result.run.held_out and (one_task or result.out_of(group)) for result in comparison.results):
        columns.append(_column(metric, "Out of federation", methodcaller("held_out", group, metric)))
    return columns


def _column(metric: Metric, heading: str, value: Callable[[Result], float]) -> Column:
    return Column(heading, value, metric.digits, metric.factor, metric)


def delta_tables(comparison: Comparison) -> list[Table]:
    """Tabulate SurgFed's Eq. (9), the improvement over local training; no table without local training."""
    delta = delta_of(comparison)
    if delta is None:
        return []
    sites = [_column(DELTA, site, partial(delta.of_site, site=site)) for site in comparison.sites]
    columns = [_column(DELTA, "Average", delta.average), *sites]
    metrics = "; ".join(
        f"{group.card.kind} by {' and '.join(metric.label for metric in delta.metrics(group))}"
        for group in comparison.groups
    )
    note = (
        "SurgFed, Eq. (9): change relative to the mean of local training, positive if better. It is averaged over a "
        f"site's metrics ({metrics}), then over the sites. {_score_note(comparison)}"
    )
    return [_table(f"{comparison.title}: {DELTA.heading} over local training", comparison, columns, note)]


def delta_scores(comparison: Comparison) -> list[Table]:
    """Tabulate the scores in Eq. (9), site by site, as SurgFed's Table I; no table without local training."""
    delta = delta_of(comparison)
    if delta is None:
        return []
    columns = [
        _column(m, f"{site}, {m.heading} {_ARROWS[m.higher_is_better]}", methodcaller("value", m, site))
        for group in comparison.groups
        for site in group.sites
        for m in delta.metrics(group)
    ]
    return [_table(f"{comparison.title}: the scores behind {DELTA.label}", comparison, columns)]


def ablation_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate the averages of all metrics beside the ticks of the active components."""
    columns = [_column(m, m.heading, methodcaller("average", group, m)) for m in group.metrics]
    return _table(_title(comparison, group), comparison, columns, f"Averages over the sites. {_score_note(comparison)}")


def _patches(comparison: Comparison, group: Group) -> list[Table]:
    """Tabulate as FL-EndoViT's Tables 1 and 7: patches below limits, loss and optimizer steps."""
    metrics = [m for m in group.metrics if m.name.startswith("below_")]
    metrics += [m for m in group.metrics if m.name == "normalised_mse"]
    columns = [_column(m, m.heading, methodcaller("average", group, m)) for m in metrics]
    columns.append(Column("optimizer steps", methodcaller("cost", "steps"), 0))
    selection = "The same videos select the rounds." if comparison.best_of_rounds else "No model is selected by them."
    note = (
        f"Averages over the sites, on the {comparison.split} videos of {', '.join(group.sites)}, without training "
        f"videos. {selection} Steps are the sum over all sites. {_score_note(comparison)}"
    )
    title = _title(comparison, group)
    rounds = [rounds_table(comparison, group, metrics, title)] if comparison.best_of_rounds else []
    return [_table(title, comparison, columns, note), *rounds]


def held_out_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate all metrics at the held-out site, as FedST's Tables 3 and 8."""
    columns = [_column(m, m.heading, methodcaller("held_out", group, m)) for m in group.metrics]
    note = f"Test videos of the held-out site, with the model for hospitals outside. {_score_note(comparison)}"
    if any(((result.scores or {}).get("held_out") or {}).get("merged") for result in comparison.results):
        note += ". The held-out site has fewer classes: the models' classes are merged"
    return _table(f"{_title(comparison, group)}: out of federation", comparison, columns, note)


def unseen_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate the mean over the sites beside the held-out site, by the metrics of FedSurg's ranking."""
    columns = []
    for metric in [m for m in group.metrics if m.name in UNSEEN_METRICS] or [group.first]:
        heading = f"{metric.heading} {_ARROWS[metric.higher_is_better]}, centres"
        columns.append(_column(metric, heading, methodcaller("average", group, metric)))
        columns.append(_column(metric, "unseen centre", methodcaller("held_out", group, metric)))
    return _table(_title(comparison, group), comparison, columns)


def class_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate F1 and recall of each class, as FL-EndoViT's Table 11, which calls the recall accuracy."""
    value = partial(_class_score, sites=group.sites)
    columns = [
        _column(m, f"{name}, {m.heading}", partial(value, name=name, key=m.name))
        for m in CLASS_METRICS
        for name in group.card.outputs
    ]
    note = f"Averages over the sites that have the class. {_score_note(comparison)}"
    return _table(_title(comparison, group), comparison, columns, note)


def _class_score(result: Result, sites: Sequence[str], name: str, key: str) -> float:
    records = [(result.scores or {}).get("sites", {}).get(site, {}).get("classes", {}).get(name) for site in sites]
    return mean_and_deviation([r[key] for r in records if isinstance(r, dict) and r.get(key) is not None])[0]


def cost_table(comparison: Comparison) -> Table:
    """Tabulate the costs of each method: inference time, parameters, and bytes and seconds per round."""
    columns = [
        Column(heading, methodcaller("cost", name), digits, factor)
        for heading, name, digits, factor in (
            ("Inference ms/frame", "ms_frame", 2, 1.0), ("Frames/s of a video", "frames_per_second", 2, 1.0),
            ("Parameters, site (K)", "parameters_site", 3, 1e-3),
            ("Parameters, server (K)", "parameters_server", 1, 1e-3),
            ("Trained MB", "parameters_trained", 2, 4e-6), ("Server MB", "parameters_server", 2, 4e-6),
            ("Up MB/round", "bytes_up", 1, 1e-6), ("Down MB/round", "bytes_down", 1, 1e-6),
            ("Slowest site s/round", "seconds_round_slowest", 2, 1.0),
            ("Server s/round", "seconds_aggregation", 3, 1.0),
        )
    ]  # fmt: skip
    note = (
        "Means over seeds. Inference time is per sample, such as a clip. A video's frames are timed one by one. "
        "MB are per site, with 4 bytes per parameter (2 in SurgFed's paper). A site's seconds include validation of "
        "the received model. Server parameters are trained at the server, for all sites together. Other runs on the "
        "same machine change the times; --jobs 1 avoids this"
    )
    title = comparison.title if comparison.layout == "costs" else "Cost"
    return _table(title, replace(comparison, tick_names=()), columns, note)


def contest_table(comparison: Comparison, group: Group) -> Table:
    """Tabulate for each metric whether the best two rows differ."""
    rows = []
    for best_two in filter(None, (results.contest(comparison, group, metric) for metric in group.metrics)):
        p_values = [best_two.untested or fixed(p, 4) for p in (best_two.t_test, best_two.wilcoxon)]
        names, difference = (best_two.best, best_two.second), best_two.metric.text(best_two.difference)
        rows.append((best_two.metric.heading, *names, difference, str(best_two.seeds), *p_values))
    head = ("Metric", "Best", "Second", "Difference", "Seeds", "Paired t-test p", "Wilcoxon p")
    note = (
        "Two-sided tests, paired by seed. A seed's value is the mean over sites: sites share models and frames share "
        "scenes, so they are not repetitions. Wilcoxon's p is at least 2 / 2^seeds, 0.25 for three seeds. The tests do "
        "not generalise to other hospitals"
    )
    title = "Do the best two differ?" + (f" {group.title}" if len(comparison.groups) > 1 else "")
    return Table(title, head, tuple(rows), 3, note)


def run_table(comparison: Comparison) -> Table:
    """Tabulate folder, commit and duration of each run."""
    rows = []
    for result in comparison.results:
        info, seconds = result.info or {}, (result.scores or {}).get("seconds", {})
        folder = f"runs/{result.folder.parent.name}/{result.folder.name}" if result.folder else result.reason
        durations = [seconds.get(key) for key in ("training", "scoring")]
        texts = (DASH if value is None else fixed(value, 0) for value in durations)
        rows.append((result.run.variant.label, str(result.run.seed), folder, str(info.get("commit", DASH)), *texts))
    note = (
        "A run's folder contains run.json (job, commit, seed, hardware), server/rounds.jsonl, the sites' models and "
        f"scores.json. Training s: all rounds; {DASH} if the training was interrupted. Scoring s: each site's best "
        "model on its test videos"
    )
    known = results.facts(comparison)
    note += ". NOT all runs have the same commit" if ", " in known["commit"] else ""
    note += f". {known['hardware']}" if known["hardware"] else ""
    return Table("Runs", ("Method", "Seed", "Run", "Commit", "Training s", "Scoring s"), tuple(rows), 4, note)


def _score_note(comparison: Comparison) -> str:
    known = results.facts(comparison)
    several = ", " in known["seeds"]
    text = f"Mean ± sample standard deviation over seeds {known['seeds']}" if several else f"Seed {known['seeds']}"
    text += f". Rounds: {known['rounds']}, {known['size']}, start: {known['start']}. Models: "
    text += f"{comparison.models}. Scores on {comparison.split} videos at the original resolution"
    text += f". {comparison.remark}" if comparison.remark else ""
    return text + "".join(_missing_seeds(comparison.of(label)) for label in comparison.labels)


def _missing_seeds(row: Sequence[Result]) -> str:
    failed = [result for result in row if result.scores is None]
    if not failed:
        return ""
    label, reason = failed[0].run.variant.label, failed[0].reason
    if len(failed) == len(row):
        return f". {label}: {reason}"
    return f". {label}: without seed {', '.join(str(result.run.seed) for result in failed)} ({reason})"


def _table(title: str, comparison: Comparison, columns: Sequence[Column], note: str = "") -> Table:
    """Tabulate numbers, after the rows' ticks if the preset has any; the default note describes the scores."""
    names, note = comparison.tick_names, note or _score_note(comparison)
    texts: list[list[str]] = []
    marks: dict[tuple[int, int], str] = {}
    seeds_differ = False
    for number, column in enumerate(columns, start=1 + len(names)):
        values = results.by_seed(comparison, column.value)
        texts.append([_text(column, *mean_and_deviation(list(row.values()))) for row in values.values()])
        ranks = _ranks(column, list(common_means(comparison, column.value).values()))
        marks |= {(row, number): rank for row, rank in enumerate(ranks) if rank}
        seeds_differ |= column.metric is not None and len({frozenset(row) for row in values.values() if row}) > 1
    rows = []
    for number, label in enumerate(comparison.labels):
        ticks = (comparison.of(label)[0].run.variant.ticks or (False,) * len(names)) if names else ()
        rows.append((label, *("✓" if tick else "" for tick in ticks), *(column[number] for column in texts)))
    if (chance := comparison.chance) and all(column.metric for column in columns):
        values_of_chance = [column.value(chance) for column in columns]
        if not all(map(math.isnan, values_of_chance)):
            cells = (_text(column, value, math.nan) for column, value in zip(columns, values_of_chance, strict=True))
            rows.append((CHANCE_ROW, *("" for _ in names), *cells))
    head = ("Method", *names, *(column.heading for column in columns))
    note += ". Ranks use only the seeds that all rows with a number have" if seeds_differ else ""
    return Table(title, head, tuple(rows), 1 + len(names), note, marks=marks)


def _text(column: Column, mean: float, deviation: float) -> str:
    text = fixed(mean * column.factor, column.digits)
    if column.metric is None or math.isnan(deviation):
        return text
    return f"{text} ± {fixed(deviation * column.factor, column.digits)}"


def _ranks(column: Column, means: Sequence[float]) -> list[str]:
    """Mark the best and second-best rounded value; no mark if all are equal, and none for a score of 0."""
    rounded = [round(mean * column.factor, column.digits) for mean in means]
    known = {value for value in rounded if not math.isnan(value)}
    if column.metric is None or len(known) < 2:
        return [""] * len(means)
    best, second, *_ = sorted(known, reverse=column.metric.higher_is_better)
    marks = {second: "second", best: "best"} | ({0.0: ""} if column.metric.higher_is_better else {})
    return [marks.get(value, "") for value in rounded]
