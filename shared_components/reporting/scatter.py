"""What is gained against what it costs: named points as inline SVG, their names in a column with leaders."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from shared_components.reporting.charts import _svg, _text, _tick_texts, _ticks, fitting, short

_LEFT, _TOP, _BOTTOM, _GAP = 54, 52, 46, 10
_LINE = 15  # from one name to the next
_LETTER = 6.4  # pixels, on average
_LONGEST = 22  # letters of a name


@dataclass(frozen=True)
class Point:
    """A method: what it costs, its mean, and its worst site, which is drawn below (or above) the mean."""

    name: str
    x: float
    y: float
    worst: float = math.nan


def scatter(
    points: Sequence[Point], *, title: str, x_label: str, y_label: str, size: tuple[int, int] = (530, 330)
) -> str:
    """Draw points over a horizontal axis from 0; those that are not finite are left out.

    Args:
        points: in any order.
        title: heading of the chart and its accessible name.
        x_label, y_label: quantity and unit.
        size: width and least height in pixels; the drawing grows with the number of names.
    """
    shown = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    width, height = size[0], max(size[1], _TOP + _BOTTOM + _LINE * len(shown))
    names = _short_names(shown, room=0.42 * width)
    right = width - 14 - _LETTER * max(map(len, names), default=0)
    heights = [value for point in shown for value in (point.y, point.worst) if math.isfinite(value)]
    place = _Axes((_LEFT, right - _GAP), (height - _BOTTOM, _TOP), _from_zero([p.x for p in shown]), fitting(heights))
    body = [place.drawn(width, x_label, y_label)]
    ordered = sorted(zip(shown, names, strict=True), key=lambda pair: -pair[0].y)
    levels = _spread([place.y(point.y) for point, _ in ordered], _TOP + 4, height - _BOTTOM)
    body += [_leader(place, point, right, level) for (point, _), level in zip(ordered, levels, strict=True)]
    body += [_marks(place, point) for point, _ in ordered]
    body += [
        _text(right + 4, level + 4, name, anchor="start", name="cell")
        for (_, name), level in zip(ordered, levels, strict=True)
    ]
    if not shown:
        body.append(_text(width / 2, height / 2, "no numbers yet", anchor="middle"))
    return _svg(width, height, title, body, kind="whole")


@dataclass(frozen=True)
class _Axes:
    """From data to SVG units; the pixels of both ends of either axis, and the data's."""

    across: tuple[float, float]
    down: tuple[float, float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        return _between(value, self.x_range, self.across)

    def y(self, value: float) -> float:
        return _between(value, self.y_range, self.down)

    def drawn(self, width: float, x_label: str, y_label: str) -> str:
        (left, right), base = self.across, self.down[0]
        ticks, steps = _ticks(*self.y_range), _ticks(*self.x_range, count=4)
        lines = [
            f'<line x1="{left}" x2="{right:.1f}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}" stroke="var(--grid)"/>'
            + _text(left - 6, self.y(v) + 4, text, anchor="end")
            for v, text in zip(ticks, _tick_texts(ticks), strict=True)
        ]
        lines += [
            f'<line x1="{self.x(v):.1f}" x2="{self.x(v):.1f}" y1="{base}" y2="{base + 4}" stroke="var(--muted)"/>'
            + _text(self.x(v), base + 17, text, anchor="middle")
            for v, text in zip(steps, _tick_texts(steps), strict=True)
        ]
        lines.append(f'<line x1="{left}" x2="{right:.1f}" y1="{base}" y2="{base}" stroke="var(--muted)"/>')
        return "".join(lines) + _text(2, 36, y_label, anchor="start") + _text(left, base + 36, x_label, anchor="start")


def _between(value: float, data: tuple[float, float], pixels: tuple[float, float]) -> float:
    return pixels[0] + (value - data[0]) / ((data[1] - data[0]) or 1) * (pixels[1] - pixels[0])


def _from_zero(values: Sequence[float]) -> tuple[float, float]:
    high = _ticks(0, max([*values, 0.0]) or 1, count=4)[-1]
    return 0.0, high


def _short_names(points: Sequence[Point], *, room: float) -> list[str]:
    longest = min(_LONGEST, int(room / _LETTER))
    return [p.name if len(p.name) <= longest else f"{p.name[: longest - 1]}…" for p in points]


def _spread(wanted: Sequence[float], top: float, base: float) -> list[float]:
    """Move heights that grow apart, so that no two names overlap, and keep them within the drawing."""
    levels: list[float] = []
    for number, level in enumerate(wanted):
        least = levels[-1] + _LINE if levels else top
        most = base - _LINE * (len(wanted) - 1 - number)
        levels.append(max(least, min(level, most)))
    return levels


def _leader(place: _Axes, point: Point, right: float, level: float) -> str:
    return (
        f'<path d="M{place.x(point.x):.1f} {place.y(point.y):.1f}L{right - _GAP / 2:.1f} {level:.1f}H{right:.1f}" '
        'fill="none" stroke="var(--grid)"/>'
    )


def _marks(place: _Axes, point: Point) -> str:
    x, y = place.x(point.x), place.y(point.y)
    numbers = f"{escape(point.name)}: {short(point.y)} at {short(point.x)}"
    drawn = ""
    if math.isfinite(point.worst):
        low = place.y(point.worst)
        numbers += f", worst site {short(point.worst)}"
        drawn = (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{low:.1f}" stroke="var(--s2)"/>'
            f'<circle cx="{x:.1f}" cy="{low:.1f}" r="3.5" fill="var(--paper)" stroke="var(--s2)" stroke-width="1.5"/>'
        )
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="var(--s1)" stroke="var(--paper)"/>'
    return f"<g>{drawn}{dot}<title>{numbers}</title></g>"
