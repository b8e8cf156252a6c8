"""Compute SurgFed's Eq. (9), the improvement over local training, for sites with different tasks and metrics."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shared_components.core.card import Metric
from shared_components.experiments.comparison.plan import Variant
from shared_components.experiments.comparison.results import Comparison, Result
from shared_components.reporting.records import NAN, Group

BASELINE = "local"  # method of the baseline
DELTA = Metric("delta_m", "Δm", True, "%", digits=2)


def improvement(values: Sequence[tuple[Metric, float, float]]) -> float:
    """Return Eq. (9) for one site in percent: the mean relative change over its metrics, positive if better.

    Args:
        values: Metric, value and value of local training. NaN or a local value of 0 gives NaN.
    """
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
    baseline = tuple(r for r in comparison.results if r.scores and _is_baseline(r.run.variant))
    return Delta(comparison, baseline) if baseline and comparison.groups else None


def _is_baseline(variant: Variant) -> bool:
    """Whether a row is local training of all parts that the other rows train."""
    return variant.method == BASELINE and variant.trains and not variant.training.get("fixed")
