"""Choose the charts of the report: from a run's records to panels of drawings with one legend each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shared_components.core.card import Metric
from shared_components.reporting.charts import Series, fitting, heat_map, line_chart, shade, stacked_bars, swatch
from shared_components.reporting.costs import (
    MEGABYTE,
    Stacks,
    bytes_by_round,
    idle_by_round,
    parts,
    seconds_by_round,
    site_seconds,
    trained,
)
from shared_components.reporting.groups import Group
from shared_components.reporting.mixing import entropies, last_mixing, matrices, own_weights, spread
from shared_components.reporting.records import Curve, Run, curves, round_number, worst

_SMALL = (356, 258)
_LARGE = (540, 304)
_LARGE_CHARTS = 2  # metrics drawn large; the others of a task that has more are small


@dataclass(frozen=True)
class Panel:
    """Charts that share a heading and a legend; `columns` is how many stand side by side on a wide page."""

    title: str
    charts: list[str]
    legend: list[tuple[str, str]]  # SVG mark, name
    columns: int = 2
    text: str = ""


def score_panels(run: Run, group: Group) -> list[Panel]:
    """Draw what was scored on validation: the mean over the outputs large, then output by output."""
    metrics = followed(run, group) or [group.first]
    large, rest = metrics[:_LARGE_CHARTS], metrics[_LARGE_CHARTS:]
    text = (
        "After r rounds: the model that a site then receives, before it trains on it. 0: the model that the run began "
        "from; the last point: the final model."
    )
    title = "Mean over the classes" if group.outputs else "Over the rounds"
    charts = [_scores(run, group, metric, ("mean",), _LARGE)[0] for metric in large]
    panels = [Panel(title, charts, _legend(run, group, large), text=text)]
    if charts := [_scores(run, group, metric, ("mean",), _SMALL)[0] for metric in rest]:
        panels.append(Panel("Other metrics", charts, _legend(run, group, rest), columns=3))
    if len(group.outputs) > 1:
        charts = [chart for metric in metrics for chart in _scores(run, group, metric, group.outputs, _SMALL)]
        panels.append(Panel("By class", charts, _legend(run, group, metrics), columns=3))
    return panels


def followed(run: Run, group: Group) -> list[Metric]:
    """Give the metrics that are scored in every round; none before the first one."""
    rows = [row.get("metrics") or {} for site in group.sites for row in run.rows[site].values()]
    return [m for m in group.metrics if any(m.name in row for row in rows)]


def _legend(run: Run, group: Group, metrics: Sequence[Metric]) -> list[tuple[str, str]]:
    sites = site_legend(run, group.sites)
    if len(sites) == 1:
        return sites
    edges = {"lowest" if metric.higher_is_better else "highest" for metric in metrics}
    text = f"{edges.pop()} in each round" if len(edges) == 1 else "in each round"
    return [*sites, (swatch(-1), f"worst site ({text})")]


def loss_panels(run: Run) -> list[Panel]:
    """Draw each loss term of the local training, by site."""
    terms = dict.fromkeys(t for site in run.sites for row in run.rows[site].values() for t in row.get("loss") or {})
    charts = [
        line_chart(
            _by_site(run, run.sites, _losses(run, term)),
            title=f"{term} loss",
            y_label="loss, mean of round",
            size=_SMALL,
        )
        for term in terms
    ]
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
        f"Weights used in round {round_number(r)}, one matrix per layer, as in PFedSIS, Fig. 3. Row: the site "
        "that receives; column: the site whose parameters it takes. No colour: an equal share."
    )
    return [Panel("How each site's personal weights are mixed", maps, _heat_legend(run, full), 0, text)]


def mixing_panels(run: Run) -> list[Panel]:
    """Draw own weight and entropies over rounds."""
    panels = []
    own, entropy = _own_chart(run), _entropy_chart(run)
    if own:
        panels.append(Panel("Weight a site gives its own parameters", [own], site_legend(run, run.sites)))
    if entropy:
        names = [(swatch(i), name) for i, name in enumerate(entropies(run))]
        panels.append(Panel("Is it plain averaging?", [entropy], names))
    return panels


def traffic_panels(run: Run) -> list[Panel]:
    """Draw the bytes of every round by role, both directions on one scale."""
    up, down = bytes_by_round(run, "up"), bytes_by_round(run, "down")
    roles = parts(up, down)
    top = max((sum(column.values()) for stacks in (up, down) for column in stacks.values()), default=0)
    unit, size = next(((u, s) for u, s in (("MB", MEGABYTE), ("kB", 1000)) if top >= s), ("bytes", 1))
    titles = {"Sent by the sites": up, "Sent to the sites": down}
    charts = [
        stacked_bars(_scaled(s, size), roles, title=title, y_label=f"{unit}, all sites", top=top / size)
        for title, s in titles.items()
    ]
    return [Panel("Bytes per round", charts, _part_legend(roles))] if roles else []


def time_panels(run: Run) -> list[Panel]:
    """Draw the seconds of every round by stage, and by site."""
    stacks = seconds_by_round(run)
    if not stacks:
        return []
    stages = parts(stacks)
    bars = stacked_bars(stacks, stages, title="Mean over the sites", y_label="seconds of own work")
    series = _by_site(run, run.sites, _totals(run))
    lines = line_chart(series, title="Every site", y_label="seconds of own work", zero=True)
    panels = [
        Panel("Seconds per round, by stage", [bars], _part_legend(stages)),
        Panel("Seconds per round, by site", [lines], site_legend(run, run.sites)),
    ]
    if idle := idle_by_round(run):
        names = parts(idle)
        chart = stacked_bars(idle, names, title="Beside the sites' own work", y_label="seconds")
        panels.append(Panel("Waiting and aggregating", [chart], _part_legend(names)))
    return panels


def site_legend(run: Run, sites: Sequence[str]) -> list[tuple[str, str]]:
    """Pair these sites with their lines' marks, which a site keeps in all charts of the run."""
    return [(swatch(run.sites.index(site)), site) for site in sites]


def _scores(run: Run, group: Group, metric: Metric, names: Sequence[str], size: tuple[int, int]) -> list[str]:
    """Draw a metric by output, on one axis that fits all of these outputs."""
    found = {name: curves(run, group.sites, metric.name, name) for name in names}
    known = [v for by_site in found.values() for c in by_site.values() for v in c.values() if math.isfinite(v)]
    axis = fitting([*known, *([] if metric.higher_is_better else [0.0])]) if known else None
    drawn = []
    for name, by_site in found.items():
        series = _by_site(run, group.sites, by_site)
        if len(group.sites) > 1:
            series.insert(0, Series("worst site", worst(by_site, metric), -1))
        title = f"{metric.label}, {name}" if group.outputs else metric.label
        title += "" if metric.higher_is_better else " (lower is better)"
        drawn.append(
            line_chart(series, title=title, y_label=metric.plain_heading, y_range=axis, received=True, size=size)
        )
    return drawn


def _by_site(run: Run, sites: Sequence[str], by_site: dict[str, Curve]) -> list[Series]:
    return [Series(site, by_site[site], run.sites.index(site)) for site in sites]


def _totals(run: Run) -> dict[str, Curve]:
    return {
        site: {r: site_seconds(row.get("seconds") or {}) for r, row in trained(run, site).items()} for site in run.sites
    }


def _losses(run: Run, term: str) -> dict[str, Curve]:
    return {
        site: {r: _number(row["loss"].get(term)) for r, row in sorted(run.rows[site].items()) if row.get("loss")}
        for site in run.sites
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _own_chart(run: Run) -> str:
    series = _by_site(run, run.sites, own_weights(run))
    if not any(s.points for s in series):
        return ""
    title = "Own weight (dotted: equal share)"
    return line_chart(series, title=title, y_label="mean over layers", reference=1 / len(run.sites))


def _entropy_chart(run: Run) -> str:
    found = entropies(run)
    if not any(math.isfinite(v) for curve in found.values() for v in curve.values()):
        return ""
    series = [Series(name, curve, i) for i, (name, curve) in enumerate(found.items())]
    title = "Normalised entropy (dotted: plain averaging)"
    return line_chart(series, title=title, y_label="entropy", reference=1.0)


def _heat_legend(run: Run, full: float) -> list[tuple[str, str]]:
    share = 1 / len(run.sites)
    low, high = max(0.0, share - full), min(1.0, share + full)
    steps = [(low, ""), (share, " (equal share)"), (high, "")]
    ends = [(shade((value - share) / full), f"{value:.2f}{note}") for value, note in steps]
    return ends + [("", f"{i} = {site}") for i, site in enumerate(run.sites, start=1)]


def _part_legend(names: list[str]) -> list[tuple[str, str]]:
    return [(swatch(i, line=False), name) for i, name in enumerate(names)]


def _scaled(stacks: Stacks, size: float) -> Stacks:
    return {r: {part: value / size for part, value in column.items()} for r, column in stacks.items()}
