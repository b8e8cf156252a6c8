"""Compute SurgFed's Eq. (9), the improvement over local training, for sites with different tasks and metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shared_components.core.card import Metric
from shared_components.experiments.comparison.plan import Variant
from shared_components.experiments.comparison.results import Comparison, Result
from shared_components.reporting.records import NAN, Group

BASELINE = "local"
"""The method that the others are measured against."""
DELTA = Metric("delta_m", "Δm", True, "%", digits=2)


def improvement(values: Sequence[tuple[Metric, float, float]]) -> float:
    """Return Eq. (9) of one site in percent: the mean over its metrics of the relative change, positive where better.

    Args:
        values: Of each metric the value, and that of local training; NaN where either is or local training has 0.
    """
    changes = [
        (1 if metric.higher_is_better else -1) * (value - local) / local if local else NAN
        for metric, value, local in values
    ]
    return 100 * statistics.fmean(changes) if changes else NAN


@dataclass(frozen=True)
class Delta:
    """Eq. (9) of the runs of a comparison, against the mean over seeds of its local training."""

    comparison: Comparison
    baseline: tuple[Result, ...]

    def of_site(self, result: Result, site: str) -> float:
        """Return a site's improvement in percent; NaN where a value is missing."""
        group = next(group for group in self.comparison.groups if site in group.sites)
        return improvement([(m, result.value(m, site), self._local(m, site)) for m in self.metrics(group)])

    def metrics(self, group: Group) -> list[Metric]:
        """Return the metrics that enter: those of a task that `Metric.in_delta` marks, else its first."""
        return [metric for metric in group.metrics if metric.in_delta] or [group.first]

    def average(self, result: Result) -> float:
        """Return the mean over all sites, of whatever task; NaN where one has none."""
        values = [self.of_site(result, site) for site in self.comparison.sites]
        return statistics.fmean(values) if values and not any(map(math.isnan, values)) else NAN

    def _local(self, metric: Metric, site: str) -> float:
        return statistics.fmean(result.value(metric, site) for result in self.baseline)


def delta_of(comparison: Comparison) -> Delta | None:
    """Return the improvements of a comparison; None where no local training is among its finished runs."""
    found = tuple(r for r in comparison.results if r.scores and _is_baseline(r.run.variant))
    return Delta(comparison, found) if found and comparison.groups else None


def _is_baseline(variant: Variant) -> bool:
    """Whether a row is local training, of all parts that the others train."""
    return variant.method == BASELINE and variant.trains and not variant.training.get("fixed")
