"""Draw line charts, stacked bars, heat maps, dot plots and scatter plots as inline SVG without scripts.

Recorded rounds count from 0; axes and tooltips count from 1. Values of models as received by a site are drawn over the
number of completed rounds, from 0 (initial model) to the last round (final model).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from shared_components.common.counted import counted
from shared_components.reporting import axes as draw
from shared_components.reporting.axes import Axes, colour, dot, fitting, numbered, short, stroke, svg, text_at, ticks
from shared_components.reporting.records import round_number

_SIZE = (540, 304)  # width and height in SVG units
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 60, 48
_POINTS_LEFT, _POINTS_TOP, _POINTS_BOTTOM, _GAP = 54, 52, 46, 10  # margins of a scatter plot
_LINE = 15  # pixels between two names
_LETTER = 6.4  # mean width of a letter in pixels
_LONGEST = 22  # maximum letters of a name
Columns = Mapping[int, Mapping[str, float]]  # round -> part -> value
_BAND = 'fill="var(--muted)" fill-opacity="0.2"'
_FULL = 0.8  # opacity of a heat map's strongest colour, at which numbers stay legible


@dataclass(frozen=True)
class Series:
    """A named curve over recorded rounds; `index` sets colour and dashes, below 0 as in `axes`."""

    name: str
    points: Mapping[int, float]
    index: int
    low: Mapping[int, float] = field(default_factory=dict)  # lower edge of a band; `points` is the upper edge


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,  # None: fits the values
    zero: bool = False,  # whether the default range includes 0
    reference: float | None = None,  # value of a dotted horizontal line
    received: bool = False,  # whether the value of round r belongs to a model after r completed rounds
    size: tuple[int, int] = _SIZE,
) -> str:
    """Draw curves over rounds; a missing round or NaN breaks the line. An axis without 0 is labelled by its ends."""
    rounds = sorted({r for s in series for r in s.points})
    values = [v for s in series for edge in (s.points, s.low) for v in edge.values() if math.isfinite(v)]
    limits = y_range or fitting([*values, *([0.0] if zero else []), *([] if reference is None else [reference])])
    axes = _axes(size, (min(rounds, default=0), max(rounds, default=1)), limits)
    if not limits[0] <= 0 <= limits[1]:
        (_, first), *_, (_, last) = numbered(ticks(*limits))
        y_label += f" (axis from {first} to {last})"
    body = [axes.y_axis(y_label), _round_axis(axes, rounds, received=received)]
    if reference is not None:
        body.append(axes.rule(axes.y(reference), 'stroke="var(--muted)" stroke-width="1.5" stroke-dasharray="2 4"'))
    body += [_curve(axes, s, dots=len(rounds) <= 30, received=received) for s in series]
    return svg(*size, title, body if values else [*body, _no_numbers(size)])


def _axes(size: tuple[int, int], x_range: tuple[float, float], y_range: tuple[float, float]) -> Axes:
    return Axes((_LEFT, size[0] - _RIGHT), (size[1] - _BOTTOM, _TOP), x_range, y_range)


def _no_numbers(size: tuple[int, int]) -> str:
    return text_at(size[0] / 2, size[1] / 2, "no numbers yet", anchor="middle")


def _round_axis(axes: Axes, rounds: Sequence[int], *, received: bool = False) -> str:
    (left, right), base = axes.across, axes.down[0]
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if len(rounds) / n <= (right - left) // 34)
    numbers = {r: r if received else round_number(r) for r in rounds}
    drawn = [text_at(axes.x(r), base + 18, str(n), anchor="middle") for r, n in numbers.items() if n % every == 0]
    label = text_at((left + right) / 2, base + 38, "completed rounds" if received else "round", anchor="middle")
    return "".join([axes.base_line(), *drawn, label])


def _curve(axes: Axes, series: Series, *, dots: bool, received: bool) -> str:
    """Draw consecutive rounds as lines, and each value as a dot with a tooltip."""
    points = sorted((r, v) for r, v in series.points.items() if math.isfinite(v))
    if series.low:
        return _area(axes, points, series)
    step = min((b - a for a, b in pairwise(sorted(series.points))), default=1)
    path = ""
    for i, (r, value) in enumerate(points):
        joined = i > 0 and r - points[i - 1][0] <= step
        path += f"{'L' if joined else 'M'}{axes.x(r):.1f} {axes.y(value):.1f}"
    drawn = f'<path d="{path}" fill="none" {stroke(series.index)}/>' if path else ""
    for r, value in points if series.index >= 0 and (dots or len(points) == 1) else ():
        when = f"after {counted(r, 'round')}" if received else f"round {round_number(r)}"
        tip = f"{series.name}, {when}: {short(value)}"
        drawn += dot(axes.x(r), axes.y(value), 3, f'fill="{colour(series.index)}"', tip)
    return drawn


def _area(axes: Axes, upper: Sequence[tuple[int, float]], series: Series) -> str:
    """Draw the area between two curves."""
    edge = [*upper, *((r, series.low[r]) for r, _ in reversed(upper))]
    corners = " ".join(f"{axes.x(r):.1f},{axes.y(value):.1f}" for r, value in edge)
    return f'<polygon points="{corners}" {_BAND}><title>{escape(series.name)}</title></polygon>'


def stacked_bars(columns: Columns, parts: Sequence[str], *, title: str, y_label: str, top: float | None = None) -> str:
    """Draw one bar per round, with its parts stacked in the order of `parts`, which also defines the colours.

    The axis ends at `top`, by default at the highest bar; a round may lack some parts.
    """
    highest = max((sum(column.values()) for column in columns.values()), default=0) if top is None else top
    low, high = min(columns, default=0), max(columns, default=0)
    axes = _axes(_SIZE, (low - 0.6, high + 0.6), (0, ticks(0, highest or 1)[-1]))
    bars = [_bar(axes, r, column, parts) for r, column in sorted(columns.items())]
    return svg(*_SIZE, title, [axes.y_axis(y_label), *bars, _round_axis(axes, sorted(columns))])


def _bar(axes: Axes, r: int, column: Mapping[str, float], parts: Sequence[str]) -> str:
    half = min(0.38 * (axes.x(1) - axes.x(0)), 22)
    drawn, base = "", 0.0
    for index, part in enumerate(parts):
        value = column.get(part, 0.0)
        y, height = axes.y(base + value), axes.y(base) - axes.y(base + value)
        tip = f"<title>round {round_number(r)}, {escape(part)}: {short(value)}</title>"
        box = f'x="{axes.x(r) - half:.1f}" y="{y:.1f}" width="{2 * half:.1f}" height="{height:.1f}"'
        drawn += f'<rect {box} fill="{colour(index)}" stroke="var(--paper)">{tip}</rect>' if value > 0 else ""
        base += value
    return drawn


def heat_map(
    rows: Sequence[Sequence[float]], *, labels: Sequence[str], title: str, names: Sequence[str], spread: float
) -> str:
    """Draw a square matrix (K, K) of mixing weights with numbers; row i is for receiving site i, NaN is an empty cell.

    The colour is the distance of a weight from 1 / K, full at the distance `spread`. `labels` are the sites' short
    names along both axes, and `names` are their full names for tooltips.
    """
    cell = 44 if len(labels) <= 6 else 24
    left, top, size = 30, 60, cell * len(labels)
    body = []
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            away = max(-1.0, min(1.0, (value - 1 / len(rows)) / spread))
            tip = f"{names[i]} receives {names[j]} with weight {value:.4f}"
            body.append(_heat_cell(value, (left + j * cell, top + i * cell, cell), away, tip))
    for i, label in enumerate(labels):
        middle = cell * (i + 0.5)
        body.append(text_at(left - 6, top + middle + 4, label, anchor="end"))
        body.append(text_at(left + middle, top - 6, label, anchor="middle"))
    head, tail = _two_lines(title, fits=(left + size) // 9)
    body.append(text_at(2, 32, tail, anchor="start", name="heading"))
    width = max(left + size, 9 * len(head), 9 * len(tail)) + 4
    return svg(width, top + size + 4, title, body, heading=head, kind="whole")


def _heat_cell(value: float, place: tuple[int, int, int], away: float, tip: str) -> str:
    x, y, cell = place
    box = f'x="{x}" y="{y}" width="{cell}" height="{cell}" stroke="var(--grid)"'
    if not math.isfinite(value):
        return f'<rect {box} fill="none"/>' + text_at(x + cell / 2, y + cell / 2 + 4, "–", anchor="middle")
    digits = f"{value:.2f}" if cell > 30 or value >= 0.995 else f"{value:.2f}"[1:]
    number = text_at(x + cell / 2, y + cell / 2 + 4, digits, anchor="middle", name="cell" if cell > 30 else "small")
    return f"<rect {box} {_fill(away)}><title>{escape(tip)}</title></rect>{number}"


def _fill(away: float) -> str:
    return f'fill="var(--{"more" if away > 0 else "less"})" fill-opacity="{_FULL * abs(away):.2f}"'


def _two_lines(title: str, *, fits: int) -> tuple[str, str]:
    """Break a layer's name after a dot near its middle if it has more than `fits` letters."""
    if len(title) <= fits or "." not in title[:-1]:
        return title, ""
    cuts = [i + 1 for i, character in enumerate(title[:-1]) if character == "."]
    cut = min(cuts, key=lambda i: max(i, len(title) - i))
    return title[:cut], title[cut:]


def dot_plot(
    rows: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, sites: Sequence[str], width: int = 860
) -> str:
    """Draw one row per name: a dot per value in the colour of its site, and a line at the row's mean.

    `sites` are in the order of their colours. Names are above the dots in a narrow drawing, else to their left.
    """
    narrow = width <= draw.SMALL_WIDTH
    label_width = max(180, 7 * max(map(len, rows), default=0))  # 7 pixels per letter
    step, left, top = (38, 14, 34) if narrow else (24, label_width + 10, 34)
    known = [v for values in rows.values() for site in values.values() for v in site if math.isfinite(v)]
    base = top + step * len(rows)
    axes = Axes((left, width - 20), (base, top - 8), fitting([0.0, *known]))
    body = axes.x_ticks(top - 8, base, base + 16)
    for number, (row, values) in enumerate(rows.items()):
        y = top + step * (number + (0.7 if narrow else 0.5))
        place = (2, y - 13, "start") if narrow else (label_width, y + 4, "end")
        if narrow and number:
            body.append(draw.line((0, y - 27), (width, y - 27), 'stroke="var(--grid)"'))
        body.append(text_at(*place[:2], row, anchor=place[2]) + _dots(row, values, sites, axes, y))
    return svg(width, base + 26, title, body, kind="whole")


def _dots(row: str, values: Mapping[str, Sequence[float]], sites: Sequence[str], axes: Axes, y: float) -> str:
    known = {site: [v for v in numbers if math.isfinite(v)] for site, numbers in values.items()}
    every, drawn = [v for numbers in known.values() for v in numbers], ""
    if every:
        mean = axes.x(sum(every) / len(every))
        drawn = draw.line((mean, y - 9), (mean, y + 9), 'stroke="var(--ink)" stroke-width="2"')
    for index, site in enumerate(sites):
        style = f'fill="{colour(index)}" fill-opacity="0.75"'
        drawn += "".join(dot(axes.x(v), y, 4, style, f"{row}, {site}: {short(v)}") for v in known.get(site, ()))
    return drawn


def swatch(index: int, *, line: bool = True) -> str:
    """Draw the legend mark of a series (a line) or of a part (a box)."""
    if index == draw.BAND:
        return _mark(f'<rect x="1" y="1" width="24" height="12" {_BAND}/>')
    if not line:
        return _mark(f'<rect x="6" y="1" width="12" height="12" rx="2" fill="{colour(index)}"/>')
    circle = "" if index < 0 else f'<circle cx="13" cy="7" r="3" fill="{colour(index)}"/>'
    return _mark(f'<line x1="1" x2="25" y1="7" y2="7" {stroke(index)}/>{circle}')


def shade(away: float) -> str:
    """Draw the legend mark of a heat map; `away` is the distance from 1 / K divided by the spread, -1 to 1."""
    return _mark(f'<rect x="6" y="1" width="12" height="12" {_fill(away)} stroke="var(--muted)"/>')


def _mark(body: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 26 14" width="26" height="14" aria-hidden="true">{body}</svg>'


@dataclass(frozen=True)
class Point:
    """A method: name, cost `x`, mean score `y`, and score of the worst site."""

    name: str
    x: float
    y: float
    worst: float = math.nan


def scatter(
    points: Sequence[Point], *, title: str, x_label: str, y_label: str, size: tuple[int, int] = (530, 330)
) -> str:
    """Draw points over a horizontal axis from 0, without points that are not finite.

    `size` is the width and the minimum height in pixels; the height grows with the number of names.
    """
    known = sorted((p for p in points if math.isfinite(p.x) and math.isfinite(p.y)), key=lambda point: -point.y)
    width, height = size[0], max(size[1], _POINTS_TOP + _POINTS_BOTTOM + _LINE * len(known))
    longest = min(_LONGEST, int(0.42 * width / _LETTER))
    names = [p.name if len(p.name) <= longest else f"{p.name[: longest - 1]}…" for p in known]
    right, base = width - 14 - _LETTER * max(map(len, names), default=0), height - _POINTS_BOTTOM
    heights = [value for point in known for value in (point.y, point.worst) if math.isfinite(value)]
    costs = 0.0, ticks(0, max((p.x for p in known), default=0.0) or 1, count=4)[-1]
    axes = Axes((_POINTS_LEFT, right - _GAP), (base, _POINTS_TOP), costs, fitting(heights))
    levels = _apart([axes.y(point.y) for point in known], _POINTS_TOP + 4, base)
    body = [axes.y_axis(y_label), *axes.x_ticks(base, base + 4, base + 17, count=4, colour="muted"), axes.base_line()]
    body.append(text_at(_POINTS_LEFT, base + 36, x_label, anchor="start"))
    body += [
        f'<path d="M{axes.x(point.x):.1f} {axes.y(point.y):.1f}L{right - _GAP / 2:.1f} {level:.1f}H{right:.1f}" '
        'fill="none" stroke="var(--grid)"/>'
        for point, level in zip(known, levels, strict=True)
    ]
    body += [_point(axes, point) for point in known]
    labels = zip(names, levels, strict=True)
    body += [text_at(right + 4, level + 4, name, anchor="start", name="cell") for name, level in labels]
    return svg(width, height, title, body if known else [*body, _no_numbers((width, height))], kind="whole")


def _apart(wanted: Sequence[float], top: float, base: float) -> list[float]:
    """Move ascending heights apart so that names do not overlap, within the drawing."""
    levels: list[float] = []
    for number, level in enumerate(wanted):
        lowest = levels[-1] + _LINE if levels else top
        levels.append(max(lowest, min(level, base - _LINE * (len(wanted) - 1 - number))))
    return levels


def _point(axes: Axes, point: Point) -> str:
    x, y = axes.x(point.x), axes.y(point.y)
    numbers, drawn = f"{escape(point.name)}: {short(point.y)} at {short(point.x)}", ""
    if math.isfinite(point.worst):
        low = axes.y(point.worst)
        numbers += f", worst site {short(point.worst)}"
        drawn = draw.line((x, y), (x, low), 'stroke="var(--s2)"')
        drawn += dot(x, low, 3.5, 'fill="var(--paper)" stroke="var(--s2)" stroke-width="1.5"')
    drawn += dot(x, y, 4.5, 'fill="var(--s1)" stroke="var(--paper)"')
    return f"<g>{drawn}<title>{numbers}</title></g>"
