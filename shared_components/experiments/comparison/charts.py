"""Draw scores by site, curves over rounds, and scores against costs."""

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

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
Curves = Mapping[str, tuple[Curve, Curve]]
"""Mean over the sites and worst site over rounds, by label."""


def panels(comparison: Comparison, group: Group) -> list[Panel]:
    """Draw all charts of a task that have data."""
    drawn = [draw(comparison, group) for draw in (score_panel, versus_panel, curve_panel, cost_panel)]
    return [*mixing_panels(comparison), *(panel for panel in drawn if panel.charts)]


def score_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw the selecting metric of a task for each seed and site."""
    metric = group.first
    rows = {
        label: {site: [r.value(metric, site) for r in comparison.of(label)] for site in group.sites}
        for label in comparison.labels
    }
    task = f"{group.title}: " if len(comparison.groups) > 1 else ""
    title = f"{task}{metric.plain_heading} on the {comparison.split} videos, by site"
    wide, narrow = (dot_plot(rows, title=title, sites=group.sites, width=width) for width in (860, 338))
    legend = [(swatch(i, line=False), site) for i, site in enumerate(group.sites)]
    return Panel("Scores", [wide], legend, 1, "Dots: each site and seed. Line: their mean.", [narrow])


def curve_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw validation scores over rounds, in shared charts for few methods or one chart per method."""
    metric = group.first
    by_label = {label: _over_rounds(comparison.of(label), group, metric) for label in comparison.labels}
    by_label = {label: pair for label, pair in by_label.items() if pair[0]}
    text = (
        f"{metric.plain_heading} on the validation split, mean over seeds. The point after r rounds is the model that "
        "a site then receives, before further training. Point 0 is the initial model, the last point the final model."
    )
    return (_shared_charts if len(by_label) <= COLOURS else _separate_charts)(by_label, metric, text)


def cost_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw the test score against the costs of a round, as means over seeds."""
    metric = group.first
    y_label = metric.plain_heading + ("" if metric.higher_is_better else ", lower is better")

    def drawn(size: tuple[int, int], x_label: str, cost: Callable[[Result], float]) -> str:
        values = (cost, methodcaller("average", group, metric), methodcaller("worst", group, metric))
        points = []
        for label in comparison.labels:
            x, average, worst_site = (mean_and_deviation(list(map(v, comparison.of(label))))[0] for v in values)
            points.append(Point(label, x, average, worst_site))
        title = f"{metric.label} and {x_label.partition(' ')[0]} of a round"
        return scatter(points, title=title, x_label=x_label, y_label=y_label, size=size)

    wide, narrow = ([drawn((width, 330), *cost) for cost in _COSTS] for width in (530, 338))
    text = (
        f"Filled: mean over the sites on the {comparison.split} videos. Open, on the same line: worst site. "
        f"{'Up' if metric.higher_is_better else 'Down'} and left is good."
    )
    return Panel("Cost and score", wide, [], 2, text, narrow)


def _over_rounds(results: Sequence[Result], group: Group, metric: Metric) -> tuple[Curve, Curve]:
    """Return the mean over the sites and the worst site, both averaged over the seeds."""
    means, worsts = [], []
    for records in [result.records for result in results if result.records]:
        by_site = curves(records, group.sites, metric.name)
        worsts.append(worst(by_site, metric))
        means.append({r: mean([curve[r] for curve in by_site.values() if r in curve]) for r in worsts[-1]})
    return _mean_curve(means), _mean_curve(worsts)


def _mean_curve(by_seed: Sequence[Curve]) -> Curve:
    rounds = sorted({r for curve in by_seed for r in curve})
    return {r: mean([curve[r] for curve in by_seed if r in curve]) for r in rounds}


def _shared_charts(by_label: Curves, metric: Metric, text: str) -> Panel:
    series_by_title = {
        title: [Series(label, pair[number], i) for i, (label, pair) in enumerate(by_label.items())]
        for number, title in enumerate(("Mean over the sites", "Worst site") if by_label else ())
    }

    def drawn(size: tuple[int, int]) -> list[str]:
        style: dict[str, Any] = {"y_label": metric.plain_heading, "received": True, "size": size}
        return [line_chart(series, title=title, **style) for title, series in series_by_title.items()]

    wide, narrow = drawn(_LARGE), drawn(_SMALL)
    return Panel("Over the rounds", wide, [(swatch(i), label) for i, label in enumerate(by_label)], 2, text, narrow)


def _separate_charts(by_label: Curves, metric: Metric, text: str) -> Panel:
    all_methods = _mean_curve([pair[0] for pair in by_label.values()])
    axis = fitting([v for pair in by_label.values() for curve in pair for v in curve.values() if v == v])
    names = {0: "mean over the sites", 1: "worst site", -1: "mean over the sites of all methods"}
    style: dict[str, Any] = {"y_label": metric.plain_heading, "y_range": axis, "received": True, "size": _TINY}
    charts = []
    for label, (average, worst_site) in by_label.items():
        series = [Series(names[i], curve, i) for i, curve in ((-1, all_methods), (1, worst_site), (0, average))]
        charts.append(line_chart(series, title=label, **style))
    return Panel("Over the rounds", charts, [(swatch(i), name) for i, name in names.items()], 0, text)
