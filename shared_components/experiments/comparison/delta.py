"""Compute SurgFed's Eq. (9), the improvement over local training, for sites with different tasks and metrics."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shared_components.core.card import Metric
from shared_components.experiments.comparison.results import Comparison, Result
from shared_components.reporting.records import NAN, Group

BASELINE = "local"  # method of the baseline
DELTA = Metric("delta_m", "Δm", True, "%", digits=2)


def improvement(values: Sequence[tuple[Metric, float, float]]) -> float:
    """Return Eq. (9) in percent from (metric, value, value of local training): the mean relative improvement."""
    changes = [
        (1 if metric.higher_is_better else -1) * (value - local) / local if local else NAN
        for metric, value, local in values
    ]
    return 100 * statistics.fmean(changes) if changes else NAN


@dataclass(frozen=True)
class Delta:
    """Eq. (9) for the runs of a comparison, relative to the mean of local training over seeds."""

    comparison: Comparison
    baseline: tuple[Result, ...]

    def of_site(self, result: Result, site: str) -> float:
        """Return a site's improvement in percent; NaN if a value is missing."""
        group = next(group for group in self.comparison.groups if site in group.sites)
        local = {m: statistics.fmean(r.value(m, site) for r in self.baseline) for m in self.metrics(group)}
        return improvement([(m, result.value(m, site), value) for m, value in local.items()])

    def metrics(self, group: Group) -> list[Metric]:
        """Return the task's metrics with `Metric.in_delta`, or its first metric."""
        return [metric for metric in group.metrics if metric.in_delta] or [group.first]

    def average(self, result: Result) -> float:
        """Return the mean over the sites of all tasks; NaN if a site has none."""
        values = [self.of_site(result, site) for site in self.comparison.sites]
        return statistics.fmean(values) if values and not any(map(math.isnan, values)) else NAN


def delta_of(comparison: Comparison) -> Delta | None:
    """Return the improvements of a comparison; None without a complete run of local training."""
    rows = [(result, result.run.variant) for result in comparison.results if result.scores]
    baseline = tuple(r for r, v in rows if v.method == BASELINE and v.trains and not v.training.get("fixed"))
    return Delta(comparison, baseline) if baseline and comparison.groups else None
