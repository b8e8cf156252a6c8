"""Read the runs of a comparison, average them over seeds and test whether rows differ."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import Any

from shared_components.common.counted import counted
from shared_components.core.card import Metric
from shared_components.core.initial_weights import describe_start
from shared_components.core.labels import CHANCE
from shared_components.core.paired_test import paired_test
from shared_components.experiments.comparison.plan import AVERAGED, BEST_OF, LAST, SCORES, Run, Versus, finished
from shared_components.reporting.records import NAN, Group, grouped, load_run, output_names, score
from shared_components.reporting.records import Run as Records
from shared_components.reporting.tables import listed

FEWEST_SEEDS = 3
LEVEL = 0.05
_NAMED = 5  # maximum row names in the verdict; more rows become a count


@dataclass(frozen=True)
class Result:
    """Scores and records of one run, or the reason why it has none."""

    run: Run
    folder: Path | None = None
    scores: dict[str, Any] | None = None
    info: dict[str, Any] | None = None
    reason: str = ""
    records: Records | None = None

    def value(self, metric: Metric, site: str) -> float:
        """Return a site's score on its test split, the mean over outputs; NaN without one."""
        return score((self.scores or {}).get("sites", {}).get(site, {}), metric.name)

    def held_out(self, group: Group, metric: Metric) -> float:
        """Return the score at the held-out site; NaN without one, or for another task."""
        return score(self.scores["held_out"], metric.name) if self.scores and self.out_of(group) else NAN

    def out_of(self, group: Group) -> bool:
        """Whether the held-out site was scored on the group's task."""
        record = (self.scores or {}).get("held_out") or {}
        if merged := record.get("merged"):  # classes of the model that the site does not distinguish
            return tuple(merged) == tuple(group.card.outputs)
        return group.first.name in record and output_names([record], group.first, group.card) == group.outputs

    def average(self, group: Group, metric: Metric) -> float:
        """Return the mean over the group's sites; NaN if a site has no score."""
        values = [self.value(metric, site) for site in group.sites]
        return statistics.mean(values) if values and not any(map(math.isnan, values)) else NAN

    def worst(self, group: Group, metric: Metric) -> float:
        """Return the worst score of the group's sites; NaN if a site has no score."""
        values = [self.value(metric, site) for site in group.sites]
        return NAN if any(map(math.isnan, values)) else metric.worst(values)

    def cost(self, name: str) -> float:
        """Return a cost, such as ``bytes_up``; NaN if it is unknown."""
        value = (self.scores or {}).get("costs", {}).get(name)
        return NAN if value is None else float(value)


@dataclass(frozen=True)
class Comparison:
    """All results, by row in the order of the table, then by seed; ``remark`` is printed below the tables."""

    title: str
    layout: str
    tick_names: tuple[str, ...]
    sites: tuple[str, ...]
    results: tuple[Result, ...]
    remark: str = ""
    versus: tuple[Versus, ...] = ()  # comparisons video by video; empty: the best two rows

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(result.run.variant.label for result in self.results))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Sites by task, with the metrics that have scores; RecordError for a run.json without tasks."""
        done = [result for result in self.results if result.info and result.scores]
        if not done or not done[0].info:
            return ()
        scores = {site: [r.scores["sites"].get(site, {}) for r in done if r.scores] for site in self.sites}
        groups = grouped(done[0].info, self.sites, scores, f"{done[0].folder}/run.json")
        return tuple(_with_scored_metrics(group, scores) for group in groups)

    @property
    def models(self) -> str:
        if self.best_of_rounds:
            return "each column's best round: the model after a round or, if a row names SWA, its mean over rounds"
        if self.split == "validation":
            return "the model after the last round or, if a row names SWA, its mean over the last rounds"
        return "each site's best model on validation"

    @property
    def split(self) -> str:
        return "validation" if any(result.run.variant.shows for result in self.results) else "test"

    @property
    def best_of_rounds(self) -> bool:
        """Whether scores are from the best round, see `models.best_scores`."""
        return any(model in BEST_OF for result in self.results for model in result.run.variant.shows.values())

    @property
    def chance(self) -> Result | None:
        """Scores of predictions that ignore the video, for tasks that record them."""
        for result in self.results:
            sites = (result.scores or {}).get("sites", {})
            if sites and all(CHANCE in record for record in sites.values()):
                held_out = ((result.scores or {}).get("held_out") or {}).get(CHANCE)
                by_site = {site: record[CHANCE] for site, record in sites.items()}
                return Result(result.run, scores={"sites": by_site, "held_out": held_out})
        return None

    def of(self, label: str) -> list[Result]:
        return [result for result in self.results if result.run.variant.label == label]


def read_results(runs: Sequence[Run], root: Path, reasons: Mapping[str, str]) -> tuple[Result, ...]:
    """Read each run's folder; a run with several rows gives a result per row."""
    return tuple(result for run in runs for result in _read(run, root, reasons.get(run.name, "")))


def _read(run: Run, root: Path, reason: str) -> list[Result]:
    folder, models = finished(run, root), run.variant.shows or {run.variant.label: ""}
    rows = {label: replace(run, variant=replace(run.variant, label=label)) for label in models}
    if folder is None:
        return [Result(row, reason=reason or "not done yet") for row in rows.values()]
    scores, records = json.loads((folder / SCORES).read_text("utf-8")), load_run(folder)
    results = {label: Result(row, folder, scores, records.info, records=records) for label, row in rows.items()}
    return [_of_model(result, models[label]) for label, result in results.items()]


def _of_model(result: Result, model: str) -> Result:
    """Select a model's scores; only trained models have costs, only the last round's model has curves."""
    if not model or result.scores is None:
        return result
    source = BEST_OF.get(model, model)
    scores = {**result.scores, "sites": result.scores["models"][model]}
    scores = scores if source in (LAST, AVERAGED) else {**scores, "costs": {}}
    return replace(result, scores=scores, records=result.records if source == LAST else None)


def _with_scored_metrics(group: Group, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> Group:
    """Remove metrics without scores, except the selecting metric."""
    names = {name for site in group.sites for record in scores[site] for name in record}
    return replace(group, metrics=tuple(m for m in group.metrics if m.name in names or m is group.first))


def facts(comparison: Comparison) -> dict[str, str]:
    """Return sizes, seeds, commits and hardware of the runs; different values of the rows are listed in row order."""
    run = comparison.results[0].run
    rows = [comparison.of(label)[0].run for label in comparison.labels]
    rows = [row for row in rows if row.variant.trains] or rows
    trainings = [row.settings() for row in rows]
    steps = [counted(t.epochs, "epoch") if t.epochs else str(t.iterations) for t in trainings]
    infos = [result.info for result in comparison.results if result.info]
    starts = [result.info for result in comparison.results if result.info and not result.run.variant.after]
    return {
        "rounds": _different(row.rounds for row in rows),
        "size": _different(f"{t.height}x{t.width}" for t in trainings),
        "local steps": _different(f"{s}, batches of {t.batch_size}" for s, t in zip(steps, trainings, strict=True)),
        "learning rate": _different(f"{t.learning_rate:g}" for t in trainings),
        "start": ", ".join(sorted({describe_start(info["start"]) for info in starts if "start" in info})) or run.start,
        "seeds": ", ".join(str(seed) for seed in sorted({r.run.seed for r in comparison.results})),
        "commit": ", ".join(sorted({str(info["commit"]) for info in infos if info.get("commit")})),
        "hardware": "; ".join(sorted({str(info["hardware"]) for info in infos if info.get("hardware")})),
    }


def _different(values: Iterable[object]) -> str:
    return " / ".join(dict.fromkeys(map(str, values)))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation without NaN values; NaN if there are too few values."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return NAN, NAN
    return statistics.mean(known), statistics.stdev(known) if len(known) > 1 else NAN


@dataclass(frozen=True)
class Contest:
    """Tests of one metric between the best two rows, paired by seed; p-values are NaN if ``untested`` gives a reason.

    A seed's value is the mean over its sites, which share a model and so are not repetitions.
    """

    metric: Metric
    best: str
    second: str
    difference: float
    seeds: int
    t_test: float
    wilcoxon: float
    untested: str = ""


def contest(comparison: Comparison, group: Group, metric: Metric) -> Contest | None:
    """Compare the best two rows; return None if fewer than two rows have scores."""
    ranked = list(ranked_means(comparison, group, metric))
    if len(ranked) < 2:
        return None
    pairs = paired_by_seed(comparison, group, metric, ranked[0], ranked[1])
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    difference = statistics.mean(a - b for a, b in pairs) if pairs else NAN
    untested = why_untested(first, second)
    p_values = (NAN, NAN) if untested else (paired_t(first, second), paired_test(first, second).p)
    return Contest(metric, ranked[0], ranked[1], difference, len(pairs), *p_values, untested)


def ranked_means(comparison: Comparison, group: Group, metric: Metric) -> dict[str, float]:
    """Return the means over sites and common seeds of the rows with scores, best first."""
    means = common_means(comparison, methodcaller("average", group, metric))
    known = [label for label in means if not math.isnan(means[label])]
    return {label: means[label] for label in sorted(known, key=means.__getitem__, reverse=metric.higher_is_better)}


def common_means(comparison: Comparison, value: Callable[[Result], float]) -> dict[str, float]:
    """Return each row's mean over the seeds that all rows with a number have; NaN for rows without."""
    values = by_seed(comparison, value)
    seeds = [set(row) for row in values.values() if row]
    common = sorted(set.intersection(*seeds)) if seeds else []
    return {label: mean_and_deviation([row.get(seed, NAN) for seed in common])[0] for label, row in values.items()}


def by_seed(comparison: Comparison, value: Callable[[Result], float]) -> dict[str, dict[int, float]]:
    """Return each row's numbers by seed, without NaN."""
    rows = {label: {r.run.seed: value(r) for r in comparison.of(label)} for label in comparison.labels}
    return {label: {seed: v for seed, v in row.items() if not math.isnan(v)} for label, row in rows.items()}


def paired_by_seed(
    comparison: Comparison, group: Group, metric: Metric, best: str, second: str
) -> list[tuple[float, float]]:
    """Return the means over the sites of two rows, for each seed that both have."""
    values = by_seed(comparison, methodcaller("average", group, metric))
    return [(values[best][seed], values[second][seed]) for seed in sorted(values[best].keys() & values[second].keys())]


def why_untested(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the reason why a paired test is impossible, or an empty text."""
    if len(first) < FEWEST_SEEDS:
        return f"fewer than {FEWEST_SEEDS} seeds"
    differences = {a - b for a, b in zip(first, second, strict=True)}
    if not any(differences):
        return "no difference"
    return "all differences equal" if len(differences) == 1 else ""


def paired_t(first: Sequence[float], second: Sequence[float]) -> float:
    from scipy import stats  # the process of a run does not need it

    return float(stats.ttest_rel(first, second).pvalue)


def verdict(comparison: Comparison, group: Group) -> str:
    """Summarise in one sentence which rows differ from the best row; empty for fewer than two rows.

    Paired t-tests over seeds are corrected by Holm (Scandinavian Journal of Statistics 6, 1979).
    """
    metric, means = group.first, ranked_means(comparison, group, group.first)
    if len(means) < 2:
        return ""
    best, *others = means
    edge = "highest" if metric.higher_is_better else "lowest"
    opening = f"{best} has the {edge} mean {metric.heading} over the sites, {metric.text(means[best])}"
    pairs = {label: paired_by_seed(comparison, group, metric, best, label) for label in others}
    counts = list(map(len, pairs.values()))
    if max(counts) < FEWEST_SEEDS:
        second = f"{others[0]} follows with {metric.text(means[others[0]])}"
        return f"{opening}. {second}. Too few seeds for a test: {max(counts)} of {FEWEST_SEEDS}."
    different = _holm({label: _p_value(values) for label, values in pairs.items()})
    similar = [label for label in others if label not in different]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    test = f"paired t-test over {seeds} seeds, corrected by Holm for {len(others)} rows, p < {LEVEL:g}"
    if not different:
        return f"{opening}, and differs from no other row beyond chance ({test})."
    rest = f", and not from {_names(similar)}" if similar else ""
    return f"{opening}. It differs beyond chance from {_names(different)}{rest} ({test})."


def _names(labels: Sequence[str]) -> str:
    return f"{len(labels)} others" if len(labels) > _NAMED else listed(labels)


def _p_value(pairs: Sequence[tuple[float, float]]) -> float:
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return 1.0 if why_untested(first, second) else paired_t(first, second)


def _holm(p_values: dict[str, float]) -> list[str]:
    passed: set[str] = set()
    for number, label in enumerate(sorted(p_values, key=lambda label: p_values[label])):
        if p_values[label] >= LEVEL / (len(p_values) - number):
            break
        passed.add(label)
    return [label for label in p_values if label in passed]
