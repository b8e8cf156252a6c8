"""Draw common parts of charts as inline SVG: axes with round numbers, texts, colours and the drawing's frame.

All names are escaped. Colours are CSS variables of the page (`--s1` to `--s8`, `--muted`, `--grid`, `--more`,
`--less`), so that one drawing works for light mode, dark mode and print. Series differ by colour; from the ninth
series on, also by dashes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 8
WORST, MEAN, BAND = -1, -2, -3  # indices of series that are not a site: worst value, mean, middle range
SMALL_WIDTH = 400  # pixels that a phone shows without scaling
_DASHES = ("", "6 3", "2 3")
_NEAR_ZERO = 0.4  # an axis includes 0 if its lower end is below this fraction of its upper end


@dataclass(frozen=True)
class Axes:
    """Scales from data values to SVG user units."""

    across: tuple[float, float]  # left and right end of the plotting area
    down: tuple[float, float]  # lower and upper end of the plotting area
    x_range: tuple[float, float]  # data values at these ends
    y_range: tuple[float, float] = (0.0, 1.0)

    def x(self, value: float) -> float:
        return _between(value, self.x_range, self.across)

    def y(self, value: float) -> float:
        return _between(value, self.y_range, self.down)

    def y_axis(self, label: str) -> str:
        """Draw the vertical axis: a grid line and a number per tick, and the label above."""
        (low, high), drawn = self.y_range, ""
        for value, number in numbered(ticks(low, high)):
            if low - 1e-9 <= value <= high + 1e-9:
                drawn += self.rule(self.y(value), 'stroke="var(--grid)"')
                drawn += text_at(self.across[0] - 6, self.y(value) + 4, number, anchor="end")
        return drawn + text_at(2, 37, label, anchor="start")

    def base_line(self) -> str:
        """Draw the horizontal axis without numbers."""
        return self.rule(self.down[0], 'stroke="var(--muted)"')

    def rule(self, y: float, style: str) -> str:
        """Draw a horizontal line across the plotting area."""
        return line((self.across[0], y), (self.across[1], y), style)

    def x_ticks(self, top: float, base: float, number_at: float, *, count: int = 5, colour: str = "grid") -> list[str]:
        """Draw a vertical line from `top` to `base` and a number per tick of the horizontal axis."""
        return [
            line((self.x(value), top), (self.x(value), base), f'stroke="var(--{colour})"')
            + text_at(self.x(value), number_at, text, anchor="middle")
            for value, text in numbered(ticks(*self.x_range, count=count))
        ]


def _between(value: float, data: tuple[float, float], pixels: tuple[float, float]) -> float:
    return pixels[0] + (value - data[0]) / ((data[1] - data[0]) or 1) * (pixels[1] - pixels[0])


def fitting(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis: the range of the values, widened to round numbers.

    The axis begins at 0 if the lower end is below `_NEAR_ZERO` of the upper end. Equal values also get an axis.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = max(high - low, 0.02 * abs(high), 1e-6)
    numbers = ticks(high - room if high - low < room else low, high)
    while (wider := ticks(numbers[0], numbers[-1])) != numbers:  # until both ends are ticks
        numbers = wider
    if 0 < numbers[0] < _NEAR_ZERO * numbers[-1]:
        return fitting([0.0, high])
    return numbers[0], numbers[-1]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` ticks that include both limits; the step is 1, 2 or 5 times a power of ten."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def numbered(values: Sequence[float]) -> list[tuple[float, str]]:
    """Pair ticks with their texts, with as many digits as the step needs."""
    digits = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9))
    return [(value, f"{value:,.{digits}f}") for value in values]


def short(value: float) -> str:
    """Format a number for a tooltip: four significant digits, no exponent."""
    if not math.isfinite(value):
        return "–"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}"


def svg(width: float, height: float, title: str, body: Sequence[str], *, heading: str = "", kind: str = "") -> str:
    """Wrap a drawing into an SVG element with the accessible name `title`, which is also the default `heading`.

    `kind` is a CSS class: `large` (default of wide drawings) enlarges text if the page scales the drawing down; `whole`
    scrolls instead of scaling.
    """
    kind = kind or ("large" if width > SMALL_WIDTH else "")
    drawn = text_at(2, 16, heading or title, anchor="start", name="heading") + "".join(body)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg class="{f"chart {kind}".strip()}" role="img" aria-label="{escape(title)}" {size}>{drawn}</svg>'


def line(start: tuple[float, float], end: tuple[float, float], style: str) -> str:
    """Return a line between two points (x, y)."""
    return f'<line x1="{start[0]:.1f}" x2="{end[0]:.1f}" y1="{start[1]:.1f}" y2="{end[1]:.1f}" {style}/>'


def dot(x: float, y: float, radius: float, style: str, tip: str = "") -> str:
    """Return a circle, with a tooltip if there is a `tip`."""
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {style}'
    return f"{circle}><title>{escape(tip)}</title></circle>" if tip else f"{circle}/>"


def text_at(x: float, y: float, text: str, *, anchor: str, name: str = "label") -> str:
    """Return a text element of the CSS class label, heading, cell or small."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{name}">{escape(text)}</text>'


def colour(index: int) -> str:
    """Return the colour of a series; series that are not a site are grey or black."""
    if index == MEAN:
        return "var(--ink)"
    return f"var(--s{index % COLOURS + 1})" if index >= 0 else "var(--muted)"


def stroke(index: int) -> str:
    """Return the line style of a series."""
    if index == MEAN:
        return 'stroke="var(--ink)" stroke-width="3.5"'
    if index < 0:
        return 'stroke="var(--muted)" stroke-width="8" stroke-opacity="0.3" stroke-linecap="round"'
    dashes = _DASHES[index // COLOURS % len(_DASHES)]
    return f'stroke="{colour(index)}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
