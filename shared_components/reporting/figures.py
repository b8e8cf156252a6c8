"""Choose the charts of the report: from a run's records to panels of drawings with one legend each."""

import math
from dataclasses import dataclass

from shared_components.reporting.charts import Series, heat_map, line_chart, shade, stacked_bars, swatch
from shared_components.reporting.costs import MEGABYTE, Stacks, bytes_by_round, parts, seconds_by_round
from shared_components.reporting.mixing import entropies, last_mixing, matrices, own_weights, spread
from shared_components.reporting.records import Curve, Run, curves, worst

_SMALL = (356, 230)
_LARGE = (540, 280)
_METRICS = {"dice": "Dice", "iou": "IoU"}


@dataclass(frozen=True)
class Panel:
    """Charts that share a heading and a legend; `columns` is how many stand side by side on a wide page."""

    title: str
    charts: list[str]
    legend: list[tuple[str, str]]  # SVG mark, name
    columns: int = 2
    text: str = ""


def score_panels(run: Run) -> list[Panel]:
    """Draw Dice and IoU on validation: the mean over the classes large, then class by class."""
    legend = site_legend(run) + (
        [(swatch(-1), "worst site (lowest in each round)")] if len(run.sites) > 1 else []
    )
    text = "Round r: the model received in round r, before it is trained on; the last point: the final model."
    large = [_scores(run, metric, "mean") for metric in _METRICS]
    panels = [Panel("Mean over the classes", large, legend, text=text)]
    if len(run.classes) > 1:
        small = [_scores(run, metric, name) for metric in _METRICS for name in run.classes]
        panels.append(Panel("By class", small, legend, columns=3))
    return panels


def loss_panels(run: Run) -> list[Panel]:
    """Draw each loss term of the local training, by site."""
    terms = dict.fromkeys(
        t for site in run.sites for row in run.rows[site].values() for t in row.get("loss") or {}
    )
    charts = [
        line_chart(
            _by_site(run, _losses(run, term)),
            title=f"{term} loss",
            y_label="loss, mean of round",
            size=_SMALL,
        )
        for term in terms
    ]
    return [Panel("Training loss", charts, site_legend(run), columns=3)] if charts else []


def mixing_panels(run: Run) -> list[Panel]:
    """Draw the newest mixing weights as heat maps, and own weight and entropies over rounds."""
    r, mixing = last_mixing(run)
    panels = []
    if mixing:
        weights = matrices(run)
        labels = [str(i + 1) for i in range(len(run.sites))]
        full = spread(weights, len(run.sites))
        maps = [
            heat_map(w, labels=labels, title=layer, names=run.sites, spread=full)
            for layer, w in weights.items()
        ]
        text = (
            f"Weights used in round {r}, one matrix per layer, as in the paper's Fig. 3. Row: the site that "
            "receives; column: the site whose parameters it takes. No colour: an equal share."
        )
        panels.append(
            Panel("How each site's personal weights are mixed", maps, _heat_legend(run, full), 0, text)
        )
    own, entropy = _own_chart(run), _entropy_chart(run)
    if own:
        panels.append(Panel("Weight a site gives its own parameters", [own], site_legend(run)))
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
    bars = stacked_bars(stacks, stages, title="Mean over the sites", y_label="seconds")
    series = _by_site(run, _totals(run))
    lines = line_chart(series, title="Every site's total", y_label="seconds", zero=True, size=(540, 260))
    return [
        Panel("Seconds per round, by stage", [bars], _part_legend(stages)),
        Panel("Seconds per round, by site", [lines], site_legend(run)),
    ]


def site_legend(run: Run) -> list[tuple[str, str]]:
    """Pair every site with its line's mark."""
    return [(swatch(i), site) for i, site in enumerate(run.sites)]


def _scores(run: Run, metric: str, name: str) -> str:
    by_site = curves(run, metric, name)
    series = _by_site(run, by_site)
    if len(run.sites) > 1:
        series.insert(0, Series("worst site", worst(by_site), -1))
    size = _LARGE if name == "mean" else _SMALL
    label = _METRICS[metric]
    return line_chart(series, title=f"{label}, {name}", y_label=label, y_range=(0, 1), size=size)


def _by_site(run: Run, by_site: dict[str, Curve]) -> list[Series]:
    return [Series(site, by_site[site], i) for i, site in enumerate(run.sites)]


def _totals(run: Run) -> dict[str, Curve]:
    return {
        site: {
            r: _number(row["seconds"].get("total"))
            for r, row in sorted(run.rows[site].items())
            if row.get("seconds")
        }
        for site in run.sites
    }


def _losses(run: Run, term: str) -> dict[str, Curve]:
    return {
        site: {
            r: _number(row["loss"].get(term)) for r, row in sorted(run.rows[site].items()) if row.get("loss")
        }
        for site in run.sites
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _own_chart(run: Run) -> str:
    series = _by_site(run, own_weights(run))
    if not any(s.points for s in series):
        return ""
    title = "Own weight (dotted: equal share)"
    return line_chart(
        series, title=title, y_label="mean over layers", y_range=(0, 1), reference=1 / len(run.sites)
    )


def _entropy_chart(run: Run) -> str:
    found = entropies(run)
    known = [v for curve in found.values() for v in curve.values() if math.isfinite(v)]
    if not known:
        return ""
    low = min(known)
    floor = min(0.95, math.floor(low * 20 - 0.5) / 20)
    series = [Series(name, curve, i) for i, (name, curve) in enumerate(found.items())]
    title = "Normalised entropy (dotted: plain averaging)"
    return line_chart(series, title=title, y_label="entropy", y_range=(max(0.0, floor), 1.0), reference=1.0)


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
