"""Scatter plots of score against cost as inline SVG, with the points' names in a column beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from shared_components.reporting.axes import Axes, fitting, numbered, short, svg, text_at, ticks

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

    `size` is the width and the least height in pixels: the drawing grows with the number of names.
    """
    shown = sorted((p for p in points if math.isfinite(p.x) and math.isfinite(p.y)), key=lambda point: -point.y)
    width, height = size[0], max(size[1], _TOP + _BOTTOM + _LINE * len(shown))
    names = _short_names(shown, room=0.42 * width)
    right = width - 14 - _LETTER * max(map(len, names), default=0)
    heights = [value for point in shown for value in (point.y, point.worst) if math.isfinite(value)]
    costs = 0.0, ticks(0, max((p.x for p in shown), default=0.0) or 1, count=4)[-1]
    axes = Axes((_LEFT, right - _GAP), (height - _BOTTOM, _TOP), costs, fitting(heights))
    levels = _spread([axes.y(point.y) for point in shown], _TOP + 4, height - _BOTTOM)
    body = [axes.y_axis(y_label), _cost_axis(axes, x_label)]
    body += [_leader(axes, point, right, level) for point, level in zip(shown, levels, strict=True)]
    body += [_marks(axes, point) for point in shown]
    body += [
        text_at(right + 4, level + 4, name, anchor="start", name="cell")
        for name, level in zip(names, levels, strict=True)
    ]
    if not shown:
        body.append(text_at(width / 2, height / 2, "no numbers yet", anchor="middle"))
    return svg(width, height, title, body, kind="whole")


def _cost_axis(axes: Axes, label: str) -> str:
    base = axes.down[0]
    drawn = [
        f'<line x1="{axes.x(v):.1f}" x2="{axes.x(v):.1f}" y1="{base}" y2="{base + 4}" stroke="var(--muted)"/>'
        + text_at(axes.x(v), base + 17, text, anchor="middle")
        for v, text in numbered(ticks(*axes.x_range, count=4))
    ]
    return "".join([*drawn, axes.base_line(), text_at(axes.across[0], base + 36, label, anchor="start")])


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


def _leader(axes: Axes, point: Point, right: float, level: float) -> str:
    return (
        f'<path d="M{axes.x(point.x):.1f} {axes.y(point.y):.1f}L{right - _GAP / 2:.1f} {level:.1f}H{right:.1f}" '
        'fill="none" stroke="var(--grid)"/>'
    )


def _marks(axes: Axes, point: Point) -> str:
    x, y = axes.x(point.x), axes.y(point.y)
    numbers = f"{escape(point.name)}: {short(point.y)} at {short(point.x)}"
    drawn = ""
    if math.isfinite(point.worst):
        low = axes.y(point.worst)
        numbers += f", worst site {short(point.worst)}"
        drawn = (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{low:.1f}" stroke="var(--s2)"/>'
            f'<circle cx="{x:.1f}" cy="{low:.1f}" r="3.5" fill="var(--paper)" stroke="var(--s2)" stroke-width="1.5"/>'
        )
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="var(--s1)" stroke="var(--paper)"/>'
    return f"<g>{drawn}{dot}<title>{numbers}</title></g>"
