"""Line charts, stacked bars and heat maps as inline SVG, without a library and without scripts.

Rounds come as recorded, from 0, and are written on axes and in tooltips as people count them, from 1. What is of models
as a site received them is drawn over the rounds done before: from 0, the start, to the last round, the final model.

Each function gives one <svg> as text with every name escaped. Colours are CSS variables of the page
(`--s1` to `--s8`, `--muted`, `--grid`, `--more`, `--less`), so that one drawing serves light, dark and paper.
Series are told apart by colour and, from the ninth on, by dashes; markers carry their number as a tooltip.
The page's style sheet keeps text legible where a drawing is scaled down (class `large`), and lets a drawing that
would become too small scroll instead (class `whole`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from shared_components.reporting.records import round_number

COLOURS = 8
_DASHES = ("", "6 3", "2 3")
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 60, 48
_NEAR_ZERO = 0.4  # share of an axis's end, below which an axis does not leave 0 out
_SMALL_WIDTH = 400  # that a telephone's window shows unscaled
_FULL = 0.8  # opacity of a heat map's strongest colour, under which numbers stay legible


@dataclass(frozen=True)
class Series:
    """A named curve over rounds as recorded; `index` picks colour and dashes, below 0 the thick grey of "worst"."""

    name: str
    points: Mapping[int, float]
    index: int


@dataclass(frozen=True)
class Frame:
    """The plotting area and its scales, from data to SVG user units."""

    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / ((high - low) or 1) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - _BOTTOM - (value - low) / ((high - low) or 1) * (self.height - _TOP - _BOTTOM)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    zero: bool = False,
    reference: float | None = None,
    received: bool = False,
    size: tuple[int, int] = (540, 304),
) -> str:
    """Draw curves over rounds; a missing round or NaN breaks the line. An axis that leaves 0 out says so.

    Args:
        series: drawn in this order.
        title: heading of the chart and its accessible name.
        y_label: quantity and unit.
        y_range: limits of the y axis; by default `fitting`.
        zero: let the default limits include 0.
        reference: height of a dotted horizontal line.
        received: the values are of models as received, so that round r as recorded comes after r rounds.
        size: width and height in SVG units, pixels where there is room.
    """
    rounds = [r for s in series for r in s.points]
    values = [v for s in series for v in s.points.values() if math.isfinite(v)]
    shown = [*values, *([0.0] if zero else []), *([] if reference is None else [reference])]
    low, high = y_range or fitting(shown)
    frame = Frame(*size, (min(rounds, default=0), max(rounds, default=1)), (low, high))
    body = [_y_axis(frame, _ranged(y_label, low, high)), _x_axis(frame, sorted(set(rounds)), received=received)]
    if reference is not None:
        body.append(_rule(frame, reference))
    body += [_curve(frame, s, dots=len(set(rounds)) <= 30, received=received) for s in series]
    if not values:
        body.append(_text(size[0] / 2, size[1] / 2, "no numbers yet", anchor="middle"))
    return _svg(*size, title, body)


def stacked_bars(
    columns: Mapping[int, Mapping[str, float]],
    parts: Sequence[str],
    *,
    title: str,
    y_label: str,
    top: float | None = None,
    size: tuple[int, int] = (540, 304),
) -> str:
    """Draw one bar per round, its parts stacked in the order of `parts`, which also gives their colours.

    Args:
        columns: the parts' values by round.
        parts: names of all parts; a round may lack some.
        title: heading of the chart and its accessible name.
        y_label: quantity and unit.
        top: value the axis must reach, for charts that are compared; by default the highest bar.
        size: width and height in SVG units, pixels where there is room.
    """
    highest = max((sum(column.values()) for column in columns.values()), default=0) if top is None else top
    low, high = min(columns, default=0), max(columns, default=0)
    frame = Frame(*size, (low - 0.6, high + 0.6), (0, _ticks(0, highest or 1)[-1]))
    body = [_y_axis(frame, y_label)]
    body += [_bar(frame, r, column, parts) for r, column in sorted(columns.items())]
    return _svg(*size, title, [*body, _x_axis(frame, sorted(columns))])


def heat_map(
    rows: Sequence[Sequence[float]], *, labels: Sequence[str], title: str, names: Sequence[str], spread: float
) -> str:
    """Draw a square matrix of weights with its numbers; colour says how far a weight is from 1 / K.

    Args:
        rows: row i holds the weights by which site i mixes every site's parameters; NaN leaves a cell empty.
        labels: short names along both axes.
        title: heading, the layer's name.
        names: full names, for the tooltips.
        spread: distance from 1 / K at which the colour is full.
    """
    cell = 44 if len(labels) <= 6 else 24
    left, top, size = 30, 60, cell * len(labels)
    cells = [(i, j) for i in range(len(rows)) for j in range(len(rows))]
    body = [_heat_cell(rows, i, j, (left + j * cell, top + i * cell, cell), spread, names) for i, j in cells]
    for i, label in enumerate(labels):
        middle = cell * (i + 0.5)
        body.append(_text(left - 6, top + middle + 4, label, anchor="end"))
        body.append(_text(left + middle, top - 6, label, anchor="middle"))
    head, tail = _two_lines(title, fits=(left + size) // 9)
    body.append(_text(2, 32, tail, anchor="start", name="heading"))
    width = max(left + size, 9 * len(head), 9 * len(tail)) + 4
    return _svg(width, top + size + 4, title, body, heading=head, kind="whole")


@dataclass(frozen=True)
class Dots:
    """One row of a dot plot: the values of every site."""

    name: str
    values: Mapping[str, Sequence[float]]


def dot_plot(rows: Sequence[Dots], *, title: str, sites: Sequence[str], width: int = 860) -> str:
    """Draw one row per name: a dot per site and value, in the site's colour, and a line at the row's mean.

    Args:
        rows: from top to bottom.
        title: heading of the chart and its accessible name.
        sites: the sites in the order of their colours, which the page's legend says.
        width: in pixels; a narrow drawing has names above the dots, a wide one beside them.
    """
    narrow = width <= _SMALL_WIDTH
    step, left, top = (38, 14, 34) if narrow else (24, 190, 34)
    known = [v for row in rows for values in row.values.values() for v in values if math.isfinite(v)]
    low, high = fitting([0.0, *known])
    base = top + step * len(rows)

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - 20)

    ticks = _ticks(low, high)
    body = [
        f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top - 8}" y2="{base}" stroke="var(--grid)"/>'
        + _text(x(t), base + 16, text, anchor="middle")
        for t, text in zip(ticks, _tick_texts(ticks), strict=True)
    ]
    for number, row in enumerate(rows):
        y = top + step * (number + (0.7 if narrow else 0.5))
        name = (2, y - 13, "start") if narrow else (180, y + 4, "end")
        if narrow and number:
            body.append(f'<line x1="0" x2="{width}" y1="{y - 27:.1f}" y2="{y - 27:.1f}" stroke="var(--grid)"/>')
        body.append(_text(*name[:2], row.name, anchor=name[2]) + _dots(row, sites, x, y))
    return _svg(width, base + 26, title, body, kind="whole")


def _dots(row: Dots, sites: Sequence[str], x: Callable[[float], float], y: float) -> str:
    values = [v for found in row.values.values() for v in found if math.isfinite(v)]
    drawn = []
    if values:
        mean = x(sum(values) / len(values))
        line = f'x1="{mean:.1f}" x2="{mean:.1f}" y1="{y - 9:.1f}" y2="{y + 9:.1f}"'
        drawn.append(f'<line {line} stroke="var(--ink)" stroke-width="2"/>')
    drawn += [
        f'<circle cx="{x(v):.1f}" cy="{y:.1f}" r="4" fill="{_colour(index)}" fill-opacity="0.75">'
        f"<title>{escape(row.name)}, {escape(site)}: {short(v)}</title></circle>"
        for index, site in enumerate(sites)
        for v in row.values.get(site, ())
        if math.isfinite(v)
    ]
    return "".join(drawn)


def fitting(values: Sequence[float]) -> tuple[float, float]:
    """Give an axis's limits: the range of the numbers, widened to round ones; a flat line still gets an axis.

    Where that saves little of the axis it begins at 0.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = max(high - low, 0.02 * abs(high), 1e-6)
    ticks = _ticks(high - room if high - low < room else low, high)
    while (wider := _ticks(ticks[0], ticks[-1])) != ticks:  # the axis ends at two of its own numbers
        ticks = wider
    if 0 < ticks[0] < _NEAR_ZERO * ticks[-1]:
        return fitting([0.0, high])
    return ticks[0], ticks[-1]


def swatch(index: int, *, line: bool = True) -> str:
    """Draw the legend's mark of a series (a line) or of a part (a box)."""
    if not line:
        return _mark(f'<rect x="6" y="1" width="12" height="12" rx="2" fill="{_colour(index)}"/>')
    dot = "" if index < 0 else f'<circle cx="13" cy="7" r="3" fill="{_colour(index)}"/>'
    return _mark(f'<line x1="1" x2="25" y1="7" y2="7" {_stroke(index)}/>{dot}')


def shade(away: float) -> str:
    """Draw the legend's mark of a heat map's cell; away is the distance from 1 / K in spreads, -1 to 1."""
    fill = f'{_fill(away)} stroke="var(--muted)"'
    return _mark(f'<rect x="6" y="1" width="12" height="12" {fill}/>')


def short(value: float) -> str:
    """Write a number for a tooltip: four significant digits, no exponent."""
    if not math.isfinite(value):
        return "–"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}"


def _curve(frame: Frame, series: Series, *, dots: bool, received: bool) -> str:
    """Draw the runs of neighbouring rounds as lines and every value as a dot with its number."""
    points = sorted((r, v) for r, v in series.points.items() if math.isfinite(v))
    step = min((b - a for (a, _), (b, _) in pairwise(sorted(series.points.items()))), default=1)
    path = ""
    for i, (r, value) in enumerate(points):
        joined = i > 0 and r - points[i - 1][0] <= step
        path += f"{'L' if joined else 'M'}{frame.x(r):.1f} {frame.y(value):.1f}"
    drawn = f'<path d="{path}" fill="none" {_stroke(series.index)}/>' if path else ""
    if series.index < 0 or not (dots or len(points) == 1):
        return drawn
    fill = f'fill="{_colour(series.index)}"'
    return drawn + "".join(
        f'<circle cx="{frame.x(r):.1f}" cy="{frame.y(v):.1f}" r="3" {fill}>'
        f"<title>{escape(series.name)}, {_when(r, received=received)}: {short(v)}</title></circle>"
        for r, v in points
    )


def _when(r: int, *, received: bool) -> str:
    return f"after {r} round{'' if r == 1 else 's'}" if received else f"round {round_number(r)}"


def _bar(frame: Frame, r: int, column: Mapping[str, float], parts: Sequence[str]) -> str:
    half = min(0.38 * (frame.x(1) - frame.x(0)), 22)
    drawn, base = [], 0.0
    for index, part in enumerate(parts):
        value = column.get(part, 0.0)
        y, height = frame.y(base + value), frame.y(base) - frame.y(base + value)
        tip = f"<title>round {round_number(r)}, {escape(part)}: {short(value)}</title>"
        box = f'x="{frame.x(r) - half:.1f}" y="{y:.1f}" width="{2 * half:.1f}" height="{height:.1f}"'
        drawn.append(f'<rect {box} fill="{_colour(index)}" stroke="var(--paper)">{tip}</rect>' if value > 0 else "")
        base += value
    return "".join(drawn)


def _fill(away: float) -> str:
    return f'fill="var(--{"more" if away > 0 else "less"})" fill-opacity="{_FULL * abs(away):.2f}"'


def _two_lines(title: str, *, fits: int) -> tuple[str, str]:
    """Break a layer's name after a dot near its middle where it is longer than fits."""
    if len(title) <= fits or "." not in title[:-1]:
        return title, ""
    dots = [i + 1 for i, character in enumerate(title[:-1]) if character == "."]
    cut = min(dots, key=lambda i: max(i, len(title) - i))
    return title[:cut], title[cut:]


def _heat_cell(
    rows: Sequence[Sequence[float]], i: int, j: int, place: tuple[int, int, int], spread: float, names: Sequence[str]
) -> str:
    value = rows[i][j]
    x, y, cell = place
    box = f'x="{x}" y="{y}" width="{cell}" height="{cell}" stroke="var(--grid)"'
    if not math.isfinite(value):
        return f'<rect {box} fill="none"/>' + _text(x + cell / 2, y + cell / 2 + 4, "–", anchor="middle")
    away = max(-1.0, min(1.0, (value - 1 / len(rows)) / spread))
    tip = f"<title>{escape(names[i])} takes {value:.4f} of {escape(names[j])}</title>"
    digits = f"{value:.2f}" if cell > 30 or value >= 0.995 else f"{value:.2f}"[1:]
    number = _text(x + cell / 2, y + cell / 2 + 4, digits, anchor="middle", name="cell" if cell > 30 else "small")
    return f"<rect {box} {_fill(away)}>{tip}</rect>{number}"


def _y_axis(frame: Frame, label: str) -> str:
    ticks = _ticks(*frame.y_range)
    drawn = []
    for value, text in zip(ticks, _tick_texts(ticks), strict=True):
        y = frame.y(value)
        if not frame.y_range[0] - 1e-9 <= value <= frame.y_range[1] + 1e-9:
            continue
        drawn.append(f'<line x1="{_LEFT}" x2="{frame.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--grid)"/>')
        drawn.append(_text(_LEFT - 6, y + 4, text, anchor="end"))
    return "".join(drawn) + _text(2, 37, label, anchor="start")


def _x_axis(frame: Frame, rounds: Sequence[int], *, received: bool = False) -> str:
    base = frame.height - _BOTTOM
    drawn = [f'<line x1="{_LEFT}" x2="{frame.width - _RIGHT}" y1="{base}" y2="{base}" stroke="var(--muted)"/>']
    room = (frame.width - _LEFT - _RIGHT) // 34
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if len(rounds) / n <= room)
    numbers = {r: r if received else round_number(r) for r in rounds}
    drawn += [
        _text(frame.x(r), base + 18, str(number), anchor="middle")
        for r, number in numbers.items()
        if number % every == 0
    ]
    label = "rounds done" if received else "round"
    return "".join(drawn) + _text((_LEFT + frame.width - _RIGHT) / 2, base + 38, label, anchor="middle")


def _rule(frame: Frame, value: float) -> str:
    y = frame.y(value)
    return (
        f'<line x1="{_LEFT}" x2="{frame.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
        'stroke="var(--muted)" stroke-width="1.5" stroke-dasharray="2 4"/>'
    )


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Give about `count` steps of 1, 2 or 5 times a power of ten, covering both limits."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def _tick_texts(ticks: Sequence[float]) -> list[str]:
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    return [f"{value:,.{digits}f}" for value in ticks]


def _ranged(label: str, low: float, high: float) -> str:
    """Say of an axis that leaves 0 out where it begins and ends."""
    if low <= 0 <= high:
        return label
    first, *_, last = _tick_texts(_ticks(low, high))
    return f"{label} (axis from {first} to {last})"


def _mark(body: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 26 14" width="26" height="14" aria-hidden="true">{body}</svg>'


def _svg(width: float, height: float, title: str, body: Sequence[str], *, heading: str = "", kind: str = "") -> str:
    """Wrap the drawing; the heading is what is drawn of the title, by default all of it."""
    kind = kind or ("large" if width > _SMALL_WIDTH else "")
    drawn = _text(2, 16, heading or title, anchor="start", name="heading")
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg class="{f"chart {kind}".strip()}" role="img" aria-label="{escape(title)}" {size}>'
        f"{drawn}{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, *, anchor: str, name: str = "label") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{name}">{escape(text)}</text>'


def _colour(index: int) -> str:
    return f"var(--s{index % COLOURS + 1})" if index >= 0 else "var(--muted)"


def _stroke(index: int) -> str:
    if index < 0:
        return 'stroke="var(--muted)" stroke-width="8" stroke-opacity="0.3" stroke-linecap="round"'
    dashes = _DASHES[index // COLOURS % len(_DASHES)]
    return f'stroke="{_colour(index)}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
