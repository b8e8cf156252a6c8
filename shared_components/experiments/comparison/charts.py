"""Draw scores by site, curves over rounds, and scores against costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller

from shared_components.core.card import Metric
from shared_components.experiments.comparison.mixing_figure import mixing_panels
from shared_components.experiments.comparison.results import Comparison, Result, mean_and_deviation
from shared_components.experiments.comparison.versus import versus_panel
from shared_components.reporting.axes import COLOURS, fitting
from shared_components.reporting.charts import Point, Series, dot_plot, line_chart, scatter, swatch
from shared_components.reporting.figures import Panel
from shared_components.reporting.records import Curve, Group, curves, mean, worst

_SMALL, _LARGE, _TINY = (338, 250), (530, 300), (262, 190)
_COSTS = (
    ("MB of a round, sent and received by one site", lambda r: 1e-6 * (r.cost("bytes_up") + r.cost("bytes_down"))),
    ("seconds of a round, slowest site", methodcaller("cost", "seconds_round_slowest")),
)  # fmt: skip


def score_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw every seed of every site of a task by its selecting metric."""
    metric = group.first
    rows = {
        label: {site: [r.value(metric, site) for r in comparison.of(label)] for site in group.sites}
        for label in comparison.labels
    }
    what = f"{group.title}: " if len(comparison.groups) > 1 else ""
    title = f"{what}{metric.plain_heading} on the {comparison.split} videos, by site"
    wide, narrow = (dot_plot(rows, title=title, sites=group.sites, width=width) for width in (860, 338))
    legend = [(swatch(i, line=False), site) for i, site in enumerate(group.sites)]
    text = "A dot for every site and seed; the line is their mean."
    return Panel("Scores", [wide], legend, 1, text, [narrow])


def curve_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw validation over the rounds: few methods in one chart, many in a chart each."""
    metric = group.first
    found = {label: _over_rounds(comparison.of(label), group, metric) for label in comparison.labels}
    found = {label: pair for label, pair in found.items() if pair[0]}
    text = (
        f"{metric.plain_heading} on the validation split, mean over seeds. After r rounds: the model that a site then "
        "receives, before it trains on it. 0: the model that the run began from; the last point: the final model."
    )
    return (_together if len(found) <= COLOURS else _one_each)(found, metric, text)


def cost_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw the test score against what a round costs, each row's mean over seeds."""
    metric = group.first
    y_label = metric.plain_heading + ("" if metric.higher_is_better else ", lower is better")

    def drawn(size: tuple[int, int], x_label: str, cost: Callable[[Result], float]) -> str:
        points = [
            Point(
                label,
                _mean_of(comparison, label, cost),
                _mean_of(comparison, label, methodcaller("average", group, metric)),
                _mean_of(comparison, label, methodcaller("worst", group, metric)),
            )
            for label in comparison.labels
        ]
        title = f"{metric.label} and {x_label.partition(' ')[0]} of a round"
        return scatter(points, title=title, x_label=x_label, y_label=y_label, size=size)

    wide, narrow = ([drawn((width, 330), *one) for one in _COSTS] for width in (530, 338))
    good = "Up" if metric.higher_is_better else "Down"
    text = (
        f"Full: the mean over the sites on the {comparison.split} videos; open, on the same line: the worst site. "
        f"{good} and left is good."
    )
    return Panel("Cost and score", wide, [], 2, text, narrow)


def _over_rounds(results: Sequence[Result], group: Group, metric: Metric) -> tuple[Curve, Curve]:
    """Return the mean over the sites and the worst site, both averaged over the seeds."""
    means, worsts = [], []
    for records in [result.records for result in results if result.records]:
        by_site = curves(records, group.sites, metric.name)
        worsts.append(worst(by_site, metric))
        means.append({r: mean([curve[r] for curve in by_site.values() if r in curve]) for r in worsts[-1]})
    return _averaged(means), _averaged(worsts)


def _averaged(found: Sequence[Curve]) -> Curve:
    rounds = sorted({r for curve in found for r in curve})
    return {r: mean([curve[r] for curve in found if r in curve]) for r in rounds}


def _together(found: Mapping[str, tuple[Curve, Curve]], metric: Metric, text: str) -> Panel:
    titles = ("Mean over the sites", "Worst site") if found else ()
    curves_of = {
        title: [Series(label, pair[place], i) for i, (label, pair) in enumerate(found.items())]
        for place, title in enumerate(titles)
    }
    wide, narrow = (
        [
            line_chart(series, title=title, y_label=metric.plain_heading, received=True, size=size)
            for title, series in curves_of.items()
        ]
        for size in (_LARGE, _SMALL)
    )
    return Panel("Over the rounds", wide, [(swatch(i), label) for i, label in enumerate(found)], 2, text, narrow)


def _one_each(found: Mapping[str, tuple[Curve, Curve]], metric: Metric, text: str) -> Panel:
    everybody = _averaged([pair[0] for pair in found.values()])
    axis = fitting([v for pair in found.values() for curve in pair for v in curve.values() if v == v])
    names = {0: "mean over the sites", 1: "worst site", -1: "mean over the sites of all methods"}
    charts = [
        line_chart(
            [Series(names[i], curve, i) for i, curve in ((-1, everybody), (1, worst_site), (0, average))],
            title=label,
            y_label=metric.plain_heading,
            y_range=axis,
            received=True,
            size=_TINY,
        )
        for label, (average, worst_site) in found.items()
    ]
    return Panel("Over the rounds", charts, [(swatch(i), name) for i, name in names.items()], 0, text)


def _mean_of(comparison: Comparison, label: str, value: Callable[[Result], float]) -> float:
    return mean_and_deviation([value(result) for result in comparison.of(label)])[0]


def panels(comparison: Comparison, group: Group) -> list[Panel]:
    """Draw all charts of a task for which there are numbers."""
    drawn = [draw(comparison, group) for draw in (score_panel, versus_panel, curve_panel, cost_panel)]
    return [*mixing_panels(comparison), *(panel for panel in drawn if panel.charts)]
