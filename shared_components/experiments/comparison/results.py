"""Read the runs of a comparison, average them over seeds and test whether the best two rows differ."""

from __future__ import annotations

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
from shared_components.core.initial_weights import describe_start as said
from shared_components.core.labels import CHANCE
from shared_components.core.paired_test import paired_test
from shared_components.core.training_settings import Training
from shared_components.experiments.comparison.plan import AVERAGED, BEST_OF, LAST, SCORES, Run, Versus, finished
from shared_components.reporting.records import NAN, Group, grouped, load_run, output_names, score
from shared_components.reporting.records import Run as Records

FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Result:
    """One run's numbers, or why it has none; `records` is what it wrote round by round."""

    run: Run
    folder: Path | None = None
    scores: dict[str, Any] | None = None
    info: dict[str, Any] | None = None
    reason: str = ""
    records: Records | None = None

    def value(self, metric: Metric, site: str) -> float:
        """Return a site's mean over outputs of the test split; NaN where there is none."""
        return score((self.scores or {}).get("sites", {}).get(site, {}), metric.name)

    def held_out(self, group: Group, metric: Metric) -> float:
        """Return the score at the held-out site; NaN where it has none or another task."""
        return score(self.scores["held_out"], metric.name) if self.scores and self.out_of(group) else NAN

    def out_of(self, group: Group) -> bool:
        """Whether the held-out site was scored on the group's task."""
        record = (self.scores or {}).get("held_out") or {}
        if merged := record.get("merged"):  # classes of the model that the site does not distinguish
            return tuple(merged) == tuple(group.card.outputs)
        return group.first.name in record and output_names([record], group.first, group.card) == group.outputs

    def average(self, group: Group, metric: Metric) -> float:
        """Return the mean over the group's sites; NaN where a site has no score."""
        values = [self.value(metric, site) for site in group.sites]
        return statistics.mean(values) if values and not any(map(math.isnan, values)) else NAN

    def worst(self, group: Group, metric: Metric) -> float:
        """Return the worst score of the group's sites; NaN where a site has none."""
        values = [self.value(metric, site) for site in group.sites]
        return NAN if any(map(math.isnan, values)) else metric.worst(values)

    def cost(self, name: str) -> float:
        """Return one of the costs; NaN where there is none."""
        value = (self.scores or {}).get("costs", {}).get(name)
        return NAN if value is None else float(value)


@dataclass(frozen=True)
class Comparison:
    """All results, by variant in the order of the table, then by seed; ``remark`` stands below the tables."""

    title: str
    layout: str
    tick_names: tuple[str, ...]
    sites: tuple[str, ...]
    results: tuple[Result, ...]
    remark: str = ""
    versus: tuple[Versus, ...] = ()  # what is compared video by video; none: the best two rows

    @property
    def labels(self) -> list[str]:
        """The rows' names."""
        return list(dict.fromkeys(result.run.variant.label for result in self.results))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The sites by what they learn, with the metrics that were scored; none before a run is done.

        Raises:
            RecordError: A run.json names no tasks.
        """
        done = [result for result in self.results if result.info and result.scores]
        if not done or not done[0].info:
            return ()
        scores = {site: [r.scores["sites"].get(site, {}) for r in done if r.scores] for site in self.sites}
        found = grouped(done[0].info, self.sites, scores, f"{done[0].folder}/run.json")
        return tuple(_scored(group, scores) for group in found)

    @property
    def models(self) -> str:
        """Which models are scored, in words."""
        if self.best_of_rounds:
            return (
                "each column's best number over the rounds, of the model after a round or, where a row says so, of its "
                "mean over the last rounds so far (SWA)"
            )
        if self._shows:
            return "the model after the last round or, where a row says so, its mean over the last rounds (SWA)"
        return "every site's best model on validation"

    @property
    def split(self) -> str:
        """The split that scores are of: where no model is chosen by validation, that."""
        return "validation" if self._shows else "test"

    @property
    def best_of_rounds(self) -> bool:
        """Whether numbers are the best over the rounds, see `best_round`."""
        return any(which in BEST_OF for result in self.results for which in result.run.variant.shows.values())

    @property
    def _shows(self) -> bool:
        return any(result.run.variant.shows for result in self.results)

    @property
    def chance(self) -> Result | None:
        """The scores of answers without a look at the test videos, where the task records them."""
        for result in self.results:
            sites = (result.scores or {}).get("sites", {})
            if sites and all(CHANCE in record for record in sites.values()):
                held_out = ((result.scores or {}).get("held_out") or {}).get(CHANCE)
                same = {site: record[CHANCE] for site, record in sites.items()}
                return Result(result.run, scores={"sites": same, "held_out": held_out})
        return None

    def of(self, label: str) -> list[Result]:
        """The results of one row."""
        return [result for result in self.results if result.run.variant.label == label]


def read_results(runs: Sequence[Run], root: Path, reasons: Mapping[str, str]) -> tuple[Result, ...]:
    """Read every run's folder; a run of several rows has a result for each."""
    return tuple(result for run in runs for result in _read(run, root, reasons.get(run.name, "")))


def _read(run: Run, root: Path, reason: str) -> list[Result]:
    folder, rows = finished(run, root), run.variant.shows or {run.variant.label: ""}
    labelled = {label: replace(run, variant=replace(run.variant, label=label)) for label in rows}
    if folder is None:
        return [Result(row, reason=reason or "not done yet") for row in labelled.values()]
    scores, records = json.loads((folder / SCORES).read_text("utf-8")), load_run(folder)
    return [
        _of_row(Result(labelled[label], folder, scores, records.info, records=records), rows[label]) for label in rows
    ]


def _of_row(result: Result, model: str) -> Result:
    """Return a run's result as that of one of its models; a control has no costs, and one alone has its curves."""
    if not model or result.scores is None:
        return result
    scores = {**result.scores, "sites": result.scores["models"][model]}
    of = BEST_OF.get(model, model)
    trained = of in (LAST, AVERAGED)
    return replace(
        result, scores=scores if trained else {**scores, "costs": {}}, records=result.records if of == LAST else None
    )


def _scored(group: Group, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> Group:
    """Leave out metrics that no result holds; the selecting one stays."""
    held = {name for site in group.sites for record in scores[site] for name in record}
    kept = [metric for metric in group.metrics if metric.name in held or metric is group.first]
    return replace(group, metrics=tuple(kept))


def facts(comparison: Comparison) -> dict[str, str]:
    """Return sizes, seeds, commits and machines of the runs; where rows differ, what each has, in their order."""
    run = comparison.results[0].run
    rows = [comparison.of(label)[0].run for label in comparison.labels]
    rows = [row for row in rows if row.variant.trains] or rows
    trainings = [row.settings() for row in rows]
    infos = [result.info for result in comparison.results if result.info]
    first = [result.info for result in comparison.results if result.info and not result.run.variant.after]
    return {
        "rounds": _each(row.rounds for row in rows),
        "size": _each(f"{one.height}x{one.width}" for one in trainings),
        "local steps": _each(f"{_steps(one)}, batches of {one.batch_size}" for one in trainings),
        "learning rate": _each(f"{one.learning_rate:g}" for one in trainings),
        "start": ", ".join(sorted({said(info["start"]) for info in first if "start" in info})) or run.start,
        "seeds": ", ".join(str(seed) for seed in sorted({r.run.seed for r in comparison.results})),
        "commit": ", ".join(_distinct(infos, "commit")),
        "hardware": "; ".join(_distinct(infos, "hardware")),
    }


def _steps(training: Training) -> str:
    return counted(training.epochs, "epoch") if training.epochs else str(training.iterations)


def _each(values: Iterable[object]) -> str:
    return " / ".join(dict.fromkeys(map(str, values)))


def _distinct(infos: Sequence[dict[str, Any]], key: str) -> list[str]:
    return sorted({str(info[key]) for info in infos if info.get(key)})


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation; a lone value has none, and nothing has neither."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return NAN, NAN
    return statistics.mean(known), statistics.stdev(known) if len(known) > 1 else NAN


@dataclass(frozen=True)
class Contest:
    """Whether the best two rows differ in one metric, paired by the seeds that both have.

    A seed's value is the mean over its sites: sites of one federation share a model, and frames of one video a scene,
    so that neither are repetitions. The difference is the mean over seeds of the best minus the second; the two-sided
    p-values are NaN where ``untested`` gives a reason.
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
    """Compare the best two rows; None where there are no two with numbers."""
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
    """Return each row's mean over the sites and over seeds, see `common_means`, the best first.

    A row without a number is left out.
    """
    means = common_means(comparison, methodcaller("average", group, metric))
    known = [label for label in means if not math.isnan(means[label])]
    return {label: means[label] for label in sorted(known, key=means.__getitem__, reverse=metric.higher_is_better)}


def common_means(comparison: Comparison, value: Callable[[Result], float]) -> dict[str, float]:
    """Return each row's mean over the seeds at which all rows with a number have one; NaN where it has none there."""
    found = by_seed(comparison, value)
    known = [set(row) for row in found.values() if row]
    common = sorted(set.intersection(*known)) if known else []
    return {label: mean_and_deviation([row.get(seed, NAN) for seed in common])[0] for label, row in found.items()}


def by_seed(comparison: Comparison, value: Callable[[Result], float]) -> dict[str, dict[int, float]]:
    """Return each row's numbers by seed, without those that are NaN."""
    rows = {label: {r.run.seed: value(r) for r in comparison.of(label)} for label in comparison.labels}
    return {label: {seed: one for seed, one in row.items() if not math.isnan(one)} for label, row in rows.items()}


def paired_by_seed(
    comparison: Comparison, group: Group, metric: Metric, best: str, second: str
) -> list[tuple[float, float]]:
    """Return the means over the sites of two rows for every seed that both have."""
    found = by_seed(comparison, methodcaller("average", group, metric))
    first, other = found[best], found[second]
    return [(first[seed], other[seed]) for seed in sorted(first.keys() & other.keys())]


def why_untested(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the reason why the seeds cannot be tested; empty where they can."""
    if len(first) < FEWEST_SEEDS:
        return f"fewer than {FEWEST_SEEDS} seeds"
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if not any(differences):
        return "no difference"
    return "all differences equal" if len(set(differences)) == 1 else ""


def paired_t(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of the paired t-test."""
    from scipy import stats  # late, here and below: a run's process does without it

    return float(stats.ttest_rel(first, second).pvalue)
