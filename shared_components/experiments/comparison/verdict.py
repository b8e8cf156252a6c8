"""Summarise a comparison in one sentence: which rows differ significantly from the best row."""

from __future__ import annotations

from collections.abc import Sequence

from shared_components.common.counted import counted
from shared_components.experiments.comparison.results import (
    FEWEST_SEEDS,
    Comparison,
    paired_by_seed,
    paired_t,
    ranked_means,
    why_untested,
)
from shared_components.reporting.records import Group
from shared_components.reporting.tables import listed

LEVEL = 0.05
_NAMED = 5  # of more rows the count is said


def verdict(comparison: Comparison, group: Group) -> str:
    """Compare the best row with every other by its mean over the sites, paired by seed; empty below two rows.

    p of the paired t-test, corrected by Holm (Scandinavian Journal of Statistics 6, 1979) for the number of other rows.
    Sites of one federation share models, and frames of one video scenes: neither are repetitions, and seeds are.
    """
    metric, means = group.first, ranked_means(comparison, group, group.first)
    if len(means) < 2:
        return ""
    best, *others = means
    edge = "highest" if metric.higher_is_better else "lowest"
    opening = f"{best} has the {edge} mean {metric.heading} over the sites, {metric.text(means[best])}"
    pairs = {label: paired_by_seed(comparison, group, metric, best, label) for label in others}
    counts = [len(found) for found in pairs.values()]
    if max(counts) < FEWEST_SEEDS:
        seeds = counted(max(counts), "seed")
        second = f"{others[0]} follows with {metric.text(means[others[0]])}"
        return f"{opening}; {second}; {seeds} cannot tell that from chance, {FEWEST_SEEDS} or more can."
    beyond = _holm({label: _p_value(found) for label, found in pairs.items()})
    within = [label for label in others if label not in beyond]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    how = f"paired t-test over {seeds} seeds, corrected by Holm for {len(others)} rows, p < {LEVEL:g}"
    if not beyond:
        return f"{opening}, and differs from no other row beyond chance ({how})."
    rest = f", and not from {_named(within)}" if within else ""
    return f"{opening}; it differs beyond chance from {_named(beyond)}{rest} ({how})."


def _p_value(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the paired t-test's p; 1 of seeds that cannot be tested."""
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return 1.0 if why_untested(first, second) else paired_t(first, second)


def _holm(p_values: dict[str, float]) -> list[str]:
    """Name those that are significant, in the order given."""
    passed: set[str] = set()
    for number, label in enumerate(sorted(p_values, key=lambda label: p_values[label])):
        if p_values[label] >= LEVEL / (len(p_values) - number):
            break
        passed.add(label)
    return [label for label in p_values if label in passed]


def _named(labels: Sequence[str]) -> str:
    if len(labels) > _NAMED:
        return f"{len(labels)} others"
    return listed(labels)
