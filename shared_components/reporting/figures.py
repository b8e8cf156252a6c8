"""Draw the charts of a run's report, as panels with one legend each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared_components.core.card import Metric
from shared_components.reporting import costs
from shared_components.reporting.axes import fitting
from shared_components.reporting.charts import Series, heat_map, line_chart, shade, stacked_bars, swatch
from shared_components.reporting.mixing import entropies, last_mixing, matrices, own_weights, spread
from shared_components.reporting.records import Curve, Group, Run, curves, round_number, score, worst

_SMALL, _LARGE = (356, 258), (540, 304)
_LARGE_CHARTS = 2  # number of metrics in large charts; other metrics get small charts
Legend = list[tuple[str, str]]  # SVG mark, name
Size = tuple[int, int]  # width and height


@dataclass(frozen=True)
class Panel:
    """Charts with a common heading, text and legend."""

    title: str
    charts: list[str]
    legend: Legend
    columns: int = 2  # number of columns on a wide page; 0: as many as fit, and the panel scrolls
    text: str = ""
    narrow: Sequence[str] = ()  # variants of the charts for a narrow window, if there are any


def score_panels(run: Run, group: Group) -> list[Panel]:
    """Draw the validation scores: large charts of the mean over the outputs, then charts by output."""
    metrics = followed(run, group) or [group.first]
    large, rest = metrics[:_LARGE_CHARTS], metrics[_LARGE_CHARTS:]
    text = (
        "The point after r rounds is the model that a site then receives, before further training. Point 0 is the "
        "initial model; the last point is the final model."
    )
    title = "Mean over the classes" if group.outputs else "Over the rounds"
    panels = [Panel(title, _scores(run, group, large, ("mean",), _LARGE), _legend(run, group, large), text=text)]
    if rest:
        charts = _scores(run, group, rest, ("mean",), _SMALL)
        panels.append(Panel("Other metrics", charts, _legend(run, group, rest), columns=3))
    if len(group.outputs) > 1:
        charts = _scores(run, group, metrics, group.outputs, _SMALL)
        panels.append(Panel("By class", charts, _legend(run, group, metrics), columns=3))
    return panels


def followed(run: Run, group: Group) -> list[Metric]:
    """Return the metrics that are scored in every round; none before the first round."""
    rows = [row.get("metrics") or {} for site in group.sites for row in run.rows[site].values()]
    return [m for m in group.metrics if any(m.name in row for row in rows)]


def _legend(run: Run, group: Group, metrics: Sequence[Metric]) -> Legend:
    sites = site_legend(run, group.sites)
    if len(sites) == 1:
        return sites
    edges = {"lowest" if metric.higher_is_better else "highest" for metric in metrics}
    text = f"{edges.pop()} in each round" if len(edges) == 1 else "in each round"
    return [*sites, (swatch(-1), f"worst site ({text})")]


def loss_panels(run: Run) -> list[Panel]:
    """Draw the loss terms of the local training, by site."""
    rows = {site: {r: row for r, row in sorted(run.rows[site].items()) if row.get("loss")} for site in run.sites}
    charts = []
    for term in dict.fromkeys(term for by_round in rows.values() for row in by_round.values() for term in row["loss"]):
        losses = {site: {r: score(row, "loss", term) for r, row in rows[site].items()} for site in run.sites}
        series = _by_site(run, run.sites, losses)
        charts.append(line_chart(series, title=f"{term} loss", y_label="mean loss of the round", size=_SMALL))
    return [Panel("Training loss", charts, site_legend(run, run.sites), columns=3)] if charts else []


def mixing_maps(run: Run) -> list[Panel]:
    """Draw the newest mixing weights as heat maps."""
    r, mixing = last_mixing(run)
    if not mixing:
        return []
    weights = matrices(run)
    labels = [str(i + 1) for i in range(len(run.sites))]
    full = spread(weights, len(run.sites))
    maps = [heat_map(w, labels=labels, title=layer, names=run.sites, spread=full) for layer, w in weights.items()]
    text = (
        f"Weights of round {round_number(r)}, one matrix per layer, as in PFedSIS, Fig. 3. Row: the receiving site. "
        "Column: the site that trained the parameters. A cell without colour is an equal share."
    )
    return [Panel("How each site's personal weights are mixed", maps, heat_legend(run.sites, full), 0, text)]


def mixing_panels(run: Run) -> list[Panel]:
    """Draw the weight of each site's own parameters and the entropies over rounds."""
    panels = []
    own = _by_site(run, run.sites, own_weights(run))
    if any(series.points for series in own):
        title, share = "Own weight (dotted: equal share)", 1 / len(run.sites)
        chart = line_chart(own, title=title, y_label="mean over layers", reference=share)
        panels.append(Panel("Weight of a site's own parameters", [chart], site_legend(run, run.sites)))
    by_name = entropies(run)
    if any(math.isfinite(value) for curve in by_name.values() for value in curve.values()):
        series = [Series(name, curve, i) for i, (name, curve) in enumerate(by_name.items())]
        title = "Normalised entropy (dotted: plain averaging)"
        chart = line_chart(series, title=title, y_label="entropy", reference=1.0)
        legend = [(swatch(i), name) for i, name in enumerate(by_name)]
        panels.append(Panel("Distance from plain averaging", [chart], legend))
    return panels


def traffic_panels(run: Run) -> list[Panel]:
    """Draw the bytes of every round by role, with both directions on one scale."""
    up, down = costs.bytes_by_round(run, "up"), costs.bytes_by_round(run, "down")
    roles = costs.parts(up, down)
    top = max((sum(column.values()) for stacks in (up, down) for column in stacks.values()), default=0)
    unit, size = next(((u, s) for u, s in (("MB", costs.MEGABYTE), ("kB", 1000)) if top >= s), ("bytes", 1))
    charts = []
    for title, stacks in (("Sent by the sites", up), ("Sent to the sites", down)):
        scaled = {r: {part: value / size for part, value in column.items()} for r, column in stacks.items()}
        charts.append(stacked_bars(scaled, roles, title=title, y_label=f"{unit}, all sites", top=top / size))
    return [Panel("Bytes per round", charts, _part_legend(roles))] if roles else []


def time_panels(run: Run) -> list[Panel]:
    """Draw the seconds of every round by stage, and by site."""
    stacks = costs.seconds_by_round(run)
    if not stacks:
        return []
    rows, label = {site: costs.trained(run, site) for site in run.sites}, "seconds of the site's work"
    totals = {s: {r: costs.site_seconds(row.get("seconds") or {}) for r, row in rows[s].items()} for s in rows}
    lines = line_chart(_by_site(run, run.sites, totals), title="By site", y_label=label, zero=True)
    panels = [
        _stacked("Seconds per round, by stage", stacks, "Mean over the sites", label),
        Panel("Seconds per round, by site", [lines], site_legend(run, run.sites)),
    ]
    if idle := costs.idle_by_round(run):
        panels.append(_stacked("Waiting and aggregation", idle, "In addition to the sites' work", "seconds"))
    return panels


def _stacked(heading: str, stacks: costs.Stacks, title: str, y_label: str) -> Panel:
    names = costs.parts(stacks)
    return Panel(heading, [stacked_bars(stacks, names, title=title, y_label=y_label)], _part_legend(names))


def site_legend(run: Run, sites: Sequence[str]) -> Legend:
    """Pair sites with their line marks; a site has the same mark in all charts of the run."""
    return [(swatch(run.sites.index(site)), site) for site in sites]


def _scores(run: Run, group: Group, metrics: Sequence[Metric], names: Sequence[str], size: Size) -> list[str]:
    """Draw metrics by output, on one axis per metric that fits all outputs."""
    charts = []
    for metric in metrics:
        by_output = {name: curves(run, group.sites, metric.name, name) for name in names}
        known = [v for by_site in by_output.values() for c in by_site.values() for v in c.values() if math.isfinite(v)]
        axis = fitting([*known, *([] if metric.higher_is_better else [0.0])]) if known else None
        style: dict[str, Any] = {"y_label": metric.plain_heading, "y_range": axis, "received": True, "size": size}
        for name, by_site in by_output.items():
            series = _by_site(run, group.sites, by_site)
            if len(group.sites) > 1:
                series.insert(0, Series("worst site", worst(by_site, metric), -1))
            title = f"{metric.label}, {name}" if group.outputs else metric.label
            title += "" if metric.higher_is_better else " (lower is better)"
            charts.append(line_chart(series, title=title, **style))
    return charts


def _by_site(run: Run, sites: Sequence[str], by_site: dict[str, Curve]) -> list[Series]:
    return [Series(site, by_site[site], run.sites.index(site)) for site in sites]


def heat_legend(sites: Sequence[str], full: float) -> Legend:
    """Return the legend of heat maps; the colour is full at the distance `full` from an equal share."""
    share = 1 / len(sites)
    low, high = max(0.0, share - full), min(1.0, share + full)
    steps = [(low, ""), (share, " (equal share)"), (high, "")]
    ends = [(shade((value - share) / full), f"{value:.2f}{note}") for value, note in steps]
    return ends + [("", f"{i} = {site}") for i, site in enumerate(sites, start=1)]


def _part_legend(names: list[str]) -> Legend:
    return [(swatch(i, line=False), name) for i, name in enumerate(names)]
