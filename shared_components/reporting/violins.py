"""Draw split violins of two models on the same videos or images, as in Figures 2 to 11 of FL-EndoViT (MIDL 2026).

The federated model is on the left. Violins are purple if the left model is significantly better, orange if the right
model is, else grey. Each value is also a dot, because the shape of a violin of nine videos is mostly smoothing.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from shared_components.core.paired_test import PairedTest, paired_test
from shared_components.reporting.axes import Axes, dot, fitting, line, short, svg, text_at

FIRST, SECOND, NEITHER = "#8a63c6", "#d9822b", "#8c8c8c"
"""Fill colours: the left model is better, the right model is better, neither is."""
_HEIGHT, _LEFT, _TOP, _BOTTOM, _STEP, _HALF = 330, 62, 60, 62, 108, 44  # pixels
_POINTS = 64  # points of an outline
_DOTS = 60  # maximum number of values that are drawn as dots

Pair = tuple[Sequence[float], Sequence[float]]
"""Values of the left and of the right model on the same videos."""


def violins(
    pairs: Mapping[str, Pair],
    *,
    title: str,
    y_label: str,
    models: tuple[str, str],  # names of the left and the right model
    tested: Mapping[str, PairedTest] | None = None,  # for example over videos, if the values are frames; None: of pairs
    level: float = 0.01,  # of significance
    higher_is_better: bool = True,
) -> str:
    """Draw a split violin per name, with its p value and the smallest possible p value.

    ValueError: a name has different numbers of left and right values.
    """
    tests = tested or {name: paired_test(*pair) for name, pair in pairs.items()}
    known = [v for pair in pairs.values() for side in pair for v in side if math.isfinite(v)]
    width = max(_LEFT + _STEP * len(pairs) + 14, 420)
    axes = Axes((_LEFT, width - 14), (_HEIGHT - _BOTTOM, _TOP), (0.0, 1.0), fitting(known))
    body = [axes.y_axis(y_label), axes.base_line()]
    for number, (name, pair) in enumerate(pairs.items()):
        middle = _LEFT + _STEP * (number + 0.5)
        fill = significance_colour(tests[name], level=level, higher_is_better=higher_is_better)
        body += [_half(axes, middle, side, way, fill, name) for side, way in zip(pair, (-1, 1), strict=True)]
        body.append(_caption(middle, _HEIGHT - _BOTTOM, name, tests[name], level))
    body.append(_legend(models, level))
    return svg(width, _HEIGHT + 22, title, body, kind="whole")


def significance_colour(test: PairedTest, *, level: float, higher_is_better: bool = True) -> str:
    """Return the fill colour for a test of the first against the second model."""
    if test.p >= level or not test.median:
        return NEITHER
    return FIRST if (test.median > 0) == higher_is_better else SECOND


def density(values: Sequence[float], at: np.ndarray) -> np.ndarray:
    """Return the Gaussian kernel density of values (N,) at points (M,), with Scott's bandwidth std N^(-1/5)."""
    known = np.asarray(values, np.float64)
    width = max(float(known.std(ddof=1)) if len(known) > 1 else 0.0, 1e-9) * len(known) ** -0.2
    z = (at[:, None] - known[None]) / width  # (M, N)
    return np.exp(-0.5 * z**2).mean(1) / (width * math.sqrt(2 * math.pi))


def _half(axes: Axes, middle: float, values: Sequence[float], way: int, fill: str, name: str) -> str:
    """Draw one half: the outline from the smallest to the largest value, quartiles, and values as dots."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    first, median, third = (axes.y(value) for value in np.percentile(known, (25, 50, 75)))
    x = middle + 3 * way
    drawn = _outline(axes, middle, known, way, fill)
    drawn += line((x, first), (x, third), 'stroke="var(--ink)" stroke-width="3"')
    drawn += line((middle, median), (middle + 14 * way, median), 'stroke="var(--ink)" stroke-width="2"')
    for value in known if len(known) <= _DOTS else ():
        style = 'fill="var(--paper)" stroke="var(--ink)"'
        drawn += dot(middle + way * 9, axes.y(value), 2.5, style, f"{name}: {short(value)}")
    return drawn


def _outline(axes: Axes, middle: float, known: Sequence[float], way: int, fill: str) -> str:
    low, high = min(known), max(known)
    if high - low < 1e-9:
        return ""
    at = np.linspace(low, high, _POINTS)
    wide = density(known, at)
    points = [f"{middle + way * _HALF * w / wide.max():.1f} {axes.y(v):.1f}" for v, w in zip(at, wide, strict=True)]
    path = f"M{middle:.1f} {axes.y(low):.1f}L{'L'.join(points)}L{middle:.1f} {axes.y(high):.1f}Z"
    return f'<path d="{path}" fill="{fill}" fill-opacity="{0.75 if way < 0 else 0.4}" stroke="{fill}"/>'


def _caption(middle: float, base: float, name: str, test: PairedTest, level: float) -> str:
    lines = {name: "label", f"p {test.p:.3g}, n {test.pairs}": "small", f"min p {test.least:.3g}": "small"}
    drawn = "".join(
        text_at(middle, base + 18 + 14 * row, text, anchor="middle", name=style)
        for row, (text, style) in enumerate(lines.items())
    )
    return f"<g>{drawn}<title>{escape(name)}: {escape(test.text(level))}</title></g>"


def _legend(models: tuple[str, str], level: float) -> str:
    texts = {FIRST: f"{models[0]} better", SECOND: f"{models[1]} better", NEITHER: f"p at least {level:g}"}
    drawn, x = text_at(2, 52, f"left: {models[0]}, right: {models[1]}", anchor="start", name="small"), 4
    for fill, text in texts.items():
        drawn += f'<rect x="{x}" y="{_HEIGHT + 6}" width="12" height="12" rx="2" fill="{fill}"/>'
        drawn += text_at(x + 17, _HEIGHT + 16, text, anchor="start", name="small")
        x += 30 + round(6.4 * len(text))
    return drawn
