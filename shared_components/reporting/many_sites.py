"""Keep a page readable with many sites: rank the sites, name the first ones, fold and summarise the others."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from shared_components.common.counted import counted
from shared_components.core.card import Metric
from shared_components.reporting.records import NAN, Group, Run, mean, score
from shared_components.reporting.tables import Table

MOST = 12
"""Maximum number of sites with a line, a row and pictures each."""
NAMED = 5
"""Number of sites with an own line or unfolded row if there are more than `MOST`."""


def are_many(sites: Sequence[str]) -> bool:
    """Return whether there are too many sites to show each of them unfolded."""
    return len(sites) > MOST


def ranked(values: Mapping[str, float], *, highest_first: bool) -> list[str]:
    """Sort sites by their values; sites with NaN come last, equal sites keep their order."""
    sign = -1 if highest_first else 1
    return sorted(values, key=lambda site: (math.isnan(values[site]), sign * values[site]))


def worst_first(by_site: Mapping[str, Mapping[str, object]], metric: Metric) -> list[str]:
    """Sort sites by a metric's mean over the outputs, the worst first; sites without a score come last."""
    values = {site: score(record, metric.name) for site, record in by_site.items()}
    return ranked(values, highest_first=not metric.higher_is_better)


def worst_last_models(run: Run, group: Group) -> list[str]:
    """Sort a task's sites by the validation score of the last model, the worst first."""
    return worst_first({site: run.last_metrics(site) for site in group.sites}, group.first)


def reductions(metric: Metric, *, many: bool) -> dict[str, Callable[[Sequence[float]], str]]:
    """Return the summary rows of a table by name, as functions of the sites' values; NaN does not count."""
    text = metric.plain_text
    few = {
        "mean over sites": lambda values: text(mean(values)),
        "worst site": lambda values: text(metric.worst(values)),
    }
    if not many:
        return few
    return few | {
        "median site": lambda values: text(middle(values)),
        "best site": lambda values: text(metric.best(values)),
        "sites with a score": lambda values: str(sum(map(math.isfinite, values))),
    }


def middle(values: Iterable[float]) -> float:
    """Return the median of the finite values, or NaN if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return median(known) if known else NAN


def folded(table: Table, shown: int) -> Table:
    """Fold all rows of a table after the first `shown` ones; the fold's text counts the sites in its first column."""
    rest = len(dict.fromkeys(row[0] for row in table.rows[shown:]))
    return replace(table, shown=shown, rest=counted(rest, "more site")) if rest else table
