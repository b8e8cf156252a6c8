"""Draw the charts of a run's report, as panels with one legend each."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared_components.core.card import Metric
from shared_components.reporting import costs
from shared_components.reporting.axes import BAND, MEAN, WORST, fitting, short
from shared_components.reporting.charts import Series, heat_map, line_chart, shade, stacked_bars, swatch
from shared_components.reporting.heat_images import heat_image
from shared_components.reporting.many_sites import NAMED, are_many, ranked, worst_last_models
from shared_components.reporting.mixing import entropies, last_mixing, matrices, own_weights, spread
from shared_components.reporting.records import NAN, Curve, Group, Run, curves, mean, round_number, score, worst

_SMALL, _LARGE = (356, 258), (540, 304)
_BAND, _BAND_NAME = (0.1, 0.9), "middle 80 %"  # quantiles over many sites
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
    lines = Lines(run, group.sites, worst_last_models(run, group), "the worst last scores")
    panels = [Panel(title, _scores(lines, group, large, ("mean",), _LARGE), _legend(lines, large), text=text)]
    if rest:
        charts = _scores(lines, group, rest, ("mean",), _SMALL)
        panels.append(Panel("Other metrics", charts, _legend(lines, rest), columns=3))
    if len(group.outputs) > 1:
        charts = _scores(lines, group, metrics, group.outputs, _SMALL)
        panels.append(Panel("By class", charts, _legend(lines, metrics), columns=3))
    return panels


@dataclass(frozen=True)
class Lines:
    """Curves of sites in a chart: one per site, or with many sites the mean, a band and the first ones of a ranking.

    A site has the same mark in all charts of the run, unless there are many sites.
    """

    run: Run
    sites: Sequence[str]
    ranking: Sequence[str]
    why: str  # what the first sites of the ranking have in common: "the worst last scores"

    @property
    def _marks(self) -> dict[str, int]:
        if are_many(self.sites):
            return {site: index for index, site in enumerate(self.ranking[:NAMED])}
        return {site: self.run.sites.index(site) for site in self.sites}

    @property
    def legend(self) -> Legend:
        """Marks and names of all curves."""
        named = [(swatch(index), site) for site, index in self._marks.items()]
        if not are_many(self.sites):
            return named
        band = f"{_BAND_NAME} of the {len(self.sites)} sites"
        return [(swatch(MEAN), "mean over sites"), (swatch(BAND), band), *named, ("", f"named sites: {self.why}")]

    def series(self, by_site: Mapping[str, Curve]) -> list[Series]:
        """Return the curves of a chart."""
        named = [Series(site, by_site[site], index) for site, index in self._marks.items()]
        if not are_many(self.sites):
            return named
        rounds = sorted({r for curve in by_site.values() for r in curve})
        values = {r: [v for c in by_site.values() if math.isfinite(v := c.get(r, NAN))] for r in rounds}
        edges = {r: np.quantile(v, _BAND).tolist() for r, v in values.items() if v}
        low, high = ({r: pair[end] for r, pair in edges.items()} for end in (0, 1))
        band = [Series(f"{_BAND_NAME} of the sites", high, BAND, low)] if edges else []
        return [*band, *named, Series("mean over sites", {r: mean(v) for r, v in values.items()}, MEAN)]


def followed(run: Run, group: Group) -> list[Metric]:
    """Return the metrics that are scored in every round; none before the first round."""
    rows = [row.get("metrics") or {} for site in group.sites for row in run.rows[site].values()]
    return [m for m in group.metrics if any(m.name in row for row in rows)]


def _legend(lines: Lines, metrics: Sequence[Metric]) -> Legend:
    sites = lines.legend
    if len(sites) == 1:
        return sites
    edges = {"lowest" if metric.higher_is_better else "highest" for metric in metrics}
    text = f"{edges.pop()} in each round" if len(edges) == 1 else "in each round"
    worst = (swatch(WORST), f"worst site ({text})")
    return [*sites, worst] if sites[-1][0] else [*sites[:-1], worst, sites[-1]]


def loss_panels(run: Run) -> list[Panel]:
    """Draw the loss terms of the local training, by site."""
    rows = {site: {r: row for r, row in sorted(run.rows[site].items()) if row.get("loss")} for site in run.sites}
    charts, last = [], {site: _last_loss(rows[site].values()) for site in run.sites}
    lines = Lines(run, run.sites, ranked(last, highest_first=True), "the highest last losses")
    for term in dict.fromkeys(term for by_round in rows.values() for row in by_round.values() for term in row["loss"]):
        losses = {site: {r: score(row, "loss", term) for r, row in rows[site].items()} for site in run.sites}
        style: dict[str, Any] = {"title": f"{term} loss", "y_label": "mean loss of the round", "size": _SMALL}
        charts.append(line_chart(lines.series(losses), **style))
    return [Panel("Training loss", charts, lines.legend, columns=3)] if charts else []


def _last_loss(rows: Iterable[Mapping[str, Any]]) -> float:
    return next((sum(row["loss"].values()) for row in reversed(list(rows))), NAN)


def mixing_maps(run: Run) -> list[Panel]:
    """Draw the newest mixing weights as heat maps."""
    r, mixing = last_mixing(run)
    if not mixing:
        return []
    weights = matrices(run)
    if are_many(run.sites):
        return [_large_maps(run, weights, round_number(r))]
    labels = [str(i + 1) for i in range(len(run.sites))]
    full = spread(weights, len(run.sites))
    maps = [heat_map(w, labels=labels, title=layer, names=run.sites, spread=full) for layer, w in weights.items()]
    text = (
        f"Weights of round {round_number(r)}, one matrix per layer, as in PFedSIS, Fig. 3. Row: the receiving site. "
        "Column: the site that trained the parameters. A cell without colour is an equal share."
    )
    return [Panel("How each site's personal weights are mixed", maps, heat_legend(run.sites, full), 0, text)]


def _large_maps(run: Run, weights: Mapping[str, Sequence[Sequence[float]]], number: int) -> Panel:
    """Draw the mixing weights of many sites as images, and name the largest weights."""
    order = [site for group in run.groups for site in worst_last_models(run, group)]
    places = [run.sites.index(site) for site in order]
    matrices = {layer: np.array(rows, float)[np.ix_(places, places)] for layer, rows in weights.items()}
    full = spread(weights, len(order))
    maps = [heat_image(matrix, title=layer, spread=full) for layer, matrix in matrices.items()]
    average = np.nan_to_num(np.mean([*matrices.values()], axis=0), nan=-1.0)
    np.fill_diagonal(average, -1.0)
    pairs = [divmod(int(place), len(order)) for place in np.argsort(-average, axis=None, kind="stable")[:NAMED]]
    named = ", ".join(f"{order[i]} from {order[j]} {short(average[i, j])}" for i, j in pairs if average[i, j] >= 0)
    text = (
        f"Weights of round {number}, one matrix per layer. Row: the receiving site. Column: the site that trained the "
        "parameters. A pixel without colour is an equal share. The sites are in the order of the table of all scores, "
        f"worst first. Largest weights between two sites, mean over the layers: {named}."
    )
    return Panel("How each site's personal weights are mixed", maps, heat_legend((), full, 1 / len(order)), 0, text)


def mixing_panels(run: Run) -> list[Panel]:
    """Draw the weight of each site's own parameters and the entropies over rounds."""
    panels = []
    own = own_weights(run)
    if any(own.values()):
        title, share = "Own weight (dotted: equal share)", 1 / len(run.sites)
        last = {site: curve[max(curve)] if curve else NAN for site, curve in own.items()}
        lines = Lines(run, run.sites, ranked(last, highest_first=True), "the highest last weights")
        chart = line_chart(lines.series(own), title=title, y_label="mean over layers", reference=share)
        panels.append(Panel("Weight of a site's own parameters", [chart], lines.legend))
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
    slowest = ranked({site: mean([*curve.values()]) for site, curve in totals.items()}, highest_first=True)
    lines = Lines(run, run.sites, slowest, "the slowest on average")
    chart = line_chart(lines.series(totals), title="By site", y_label=label, zero=True)
    panels = [
        _stacked("Seconds per round, by stage", stacks, "Mean over the sites", label),
        Panel("Seconds per round, by site", [chart], lines.legend),
    ]
    if idle := costs.idle_by_round(run):
        panels.append(_stacked("Waiting and aggregation", idle, "In addition to the sites' work", "seconds"))
    return panels


def _stacked(heading: str, stacks: costs.Stacks, title: str, y_label: str) -> Panel:
    names = costs.parts(stacks)
    return Panel(heading, [stacked_bars(stacks, names, title=title, y_label=y_label)], _part_legend(names))


def _scores(lines: Lines, group: Group, metrics: Sequence[Metric], names: Sequence[str], size: Size) -> list[str]:
    """Draw metrics by output, on one axis per metric that fits all outputs."""
    charts = []
    for metric in metrics:
        by_output = {name: curves(lines.run, group.sites, metric.name, name) for name in names}
        known = [v for by_site in by_output.values() for c in by_site.values() for v in c.values() if math.isfinite(v)]
        axis = fitting([*known, *([] if metric.higher_is_better else [0.0])]) if known else None
        style: dict[str, Any] = {"y_label": metric.plain_heading, "y_range": axis, "received": True, "size": size}
        for name, by_site in by_output.items():
            series = lines.series(by_site)
            if len(group.sites) > 1:
                series.insert(0, Series("worst site", worst(by_site, metric), WORST))
            title = f"{metric.label}, {name}" if group.outputs else metric.label
            title += "" if metric.higher_is_better else " (lower is better)"
            charts.append(line_chart(series, title=title, **style))
    return charts


def heat_legend(sites: Sequence[str], full: float, share: float = 0.0) -> Legend:
    """Return the legend of heat maps; the colour is full at the distance `full` from an equal share.

    `share` replaces the share of the named `sites`, for many sites without names.
    """
    share, digits = (share, 3) if share else (1 / len(sites), 2)
    low, high = max(0.0, share - full), min(1.0, share + full)
    steps = [(low, ""), (share, " (equal share)"), (high, "")]
    ends = [(shade((value - share) / full), f"{value:.{digits}f}{note}") for value, note in steps]
    return ends + [("", f"{i} = {site}") for i, site in enumerate(sites, start=1)]


def _part_legend(names: list[str]) -> Legend:
    return [(swatch(i, line=False), name) for i, name in enumerate(names)]
