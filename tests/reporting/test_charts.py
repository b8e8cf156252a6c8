"""Charts: well-formed SVG whose marks stand where the numbers say, and names that do not overlap."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from shared_components.reporting import charts
from shared_components.reporting.charts import Point, Series, heat_map, scatter, stacked_bars


def marks(svg, tag):
    return [element for element in ElementTree.fromstring(svg).iter() if element.tag == tag]


def texts(svg):
    return [element.text or "" for element in marks(svg, "text")]


def curve(points, name="a"):
    return charts.line_chart([Series(name, points, 0)], title="Dice", y_label="Dice", y_range=(0, 1))


def test_every_value_is_a_dot_with_its_number_and_a_higher_one_stands_higher_in_proportion():
    svg = curve({0: 0.25, 1: 0.5, 2: 0.75})
    assert [tip.text for tip in marks(svg, "title")] == [f"a, round {n + 1}: {(n + 1) / 4:.4f}" for n in range(3)]
    low, middle, high = (float(dot.get("cy", "nan")) for dot in marks(svg, "circle"))
    assert low > middle > high and low - middle == pytest.approx(middle - high, abs=0.11)


def test_axes_count_rounds_from_one():
    assert [text for text in texts(curve({0: 0.25, 1: 0.5, 2: 0.6})) if text.isdigit()] == ["1", "2", "3"]
    bars = stacked_bars({0: {"a": 1.0}, 1: {"a": 1.0}}, ["a"], title="t", y_label="s", top=1)
    assert [text for text in texts(bars) if text.isdigit()] == ["1", "2"]
    assert [element.text for element in marks(bars, "title")] == ["round 1, a: 1.000", "round 2, a: 1.000"]
    many = stacked_bars({r: {"a": 1.0} for r in range(100)}, ["a"], title="t", y_label="s", top=1)
    assert [text for text in texts(many) if text.isdigit()] == [str(n) for n in range(10, 101, 10)]


def test_nan_and_a_missing_round_break_the_line_and_have_no_dot():
    svg = curve({0: 0.1, 1: 0.2, 2: math.nan, 3: 0.3, 4: 0.4, 6: 0.5, 7: 0.6})
    assert re.findall("[ML]", marks(svg, "path")[0].get("d", "")) == ["M", "L"] * 3
    assert len(marks(svg, "circle")) == 6 and "nan" not in svg


def test_without_numbers_the_chart_says_so_and_names_are_escaped():
    assert "no numbers yet" in texts(charts.line_chart([], title="Dice", y_label="Dice"))
    assert "no numbers yet" in texts(curve({0: math.nan}))
    svg = curve({0: 0.1}, name="<script>&\"'")
    assert "<script>" not in svg and marks(svg, "title")[0].text == "<script>&\"', round 1: 0.1000"


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e-7, 3e-7], [1e9, 2e9], [-1.0, 1.0]])
def test_any_range_gets_ticks_that_cover_it_and_its_reference(values):
    svg = charts.line_chart([Series("a", dict(enumerate(values)), 0)], title="t", y_label="y")
    dots = [float(dot.get("cy", "nan")) for dot in marks(svg, "circle")]
    assert all(59 < y < 305 - 48 for y in dots)
    assert len(set(texts(svg))) >= 4
    svg = charts.line_chart([Series("a", {0: 0.5, 1: 0.6}, 0)], title="t", y_label="y", reference=0.1)
    rule = next(line for line in marks(svg, "line") if line.get("stroke-dasharray"))
    assert 60 <= float(rule.get("y1", "nan")) <= 304 - 48


@pytest.mark.parametrize("values, axis", [
    ([0.61, 0.78], ("0.60", "0.80")), ([0.93, 1.0], ("0.92", "1.00")), ([0.7], ("0.685", "0.700")),
    ([0.42, 0.94], ("0.4", "1.0")), ([0.62, 1.3], ("0.6", "1.4")), ([0.05, 0.9], None), ([-0.2, 0.4], None),
    ([math.nan], None),
    ([0.38, 0.96], None),  # to leave out 0 would save little
])  # fmt: skip
def test_an_axis_fits_its_values_and_says_where_it_leaves_out_zero(values, axis):
    said = "Dice (axis from {} to {})".format(*axis) if axis else "Dice"
    assert said in texts(charts.line_chart([Series("a", dict(enumerate(values)), 0)], title="t", y_label="Dice"))


def test_bars_stack_without_overlap():
    low, high = marks(stacked_bars({0: {"a": 1.0, "b": 3.0}}, ["a", "b"], title="t", y_label="s"), "rect")
    assert float(high.get("height", 0)) == pytest.approx(3 * float(low.get("height", 0)), abs=0.2)
    assert float(high.get("y", 0)) + float(high.get("height", 0)) == pytest.approx(float(low.get("y", 0)), abs=0.2)


def test_heat_map_writes_every_weight_and_colours_by_distance_from_equal_shares():
    svg = heat_map([[0.9, 0.1], [0.5, 0.5]], labels=["1", "2"], title="head", names=["a", "b"], spread=0.4)
    assert [text for text in texts(svg) if "." in text] == ["0.90", "0.10", "0.50", "0.50"]
    cells = marks(svg, "rect")
    assert [cell.get("fill") for cell in cells[:2]] == ["var(--more)", "var(--less)"]
    assert [float(cell.get("fill-opacity", "nan")) for cell in cells] == [0.8, 0.8, 0.0, 0.0]
    assert len({charts.swatch(i) for i in range(20)}) == 20  # twenty series look different
    absent = heat_map([[math.nan] * 2, [0.5, 0.5]], labels=["1", "2"], title="t", names=["a", "b"], spread=0.1)
    assert texts(absent).count("–") == 2


def scattered(*points, size=(530, 330)):
    return scatter(points, title="Dice and MB", x_label="MB", y_label="Dice", size=size)


def full_dots(svg):
    """Return the positions of the full dots, from the highest value to the lowest."""
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="4.5"', svg)]


def names_beside(svg):
    pairs = re.findall(r'<text x="[\d.]+" y="([\d.]+)" text-anchor="start" class="cell">([^<]*)', svg)
    return {name: float(y) for y, name in pairs}


def test_more_cost_is_further_right_more_score_is_higher_and_the_worst_site_is_below():
    svg = scattered(Point("a", 0, 0.8), Point("b", 10, 0.6), Point("c", 20, 0.4))
    (first, second, third) = full_dots(svg)
    assert first[0] == 54 and second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.11)
    assert second[1] - first[1] == pytest.approx(third[1] - second[1], abs=0.11) and first[1] < second[1]

    svg = scattered(Point("a", 5, 0.8, 0.2))
    [(x, y)] = full_dots(svg)
    [(other, low)] = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5"', svg)
    assert float(other) == x and float(low) > y
    assert "<title>a: 0.8000 at 5.000, worst site 0.2000</title>" in svg


@pytest.mark.parametrize("size", [(530, 330), (338, 330)])
def test_names_of_equal_points_do_not_overlap_and_stay_inside(size):
    svg = scattered(*(Point(f"method {i}", 5, 0.5) for i in range(30)), size=size)
    places = sorted(names_beside(svg).values())
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', svg).group(1))
    assert len(places) == 30 and places[0] > 40 and places[-1] < height - 20
    assert min(b - a for a, b in pairwise(places)) >= 14.9
    assert (charts._apart([20, 100, 104], 10, 200), charts._apart([190, 195], 10, 200)) == ([20, 100, 115], [185, 200])


def test_a_long_name_is_cut_and_stands_in_full_in_its_tooltip():
    svg = scattered(Point("<a name that is far too long for its column>", 1, 0.5))
    assert [name for name in names_beside(svg) if name.endswith("…") and len(name) < 30]
    assert "<title>&lt;a name that is far too long for its column&gt;:" in svg


def test_what_has_no_number_is_left_out_and_nothing_at_all_is_said():
    svg = scattered(Point("a", math.nan, 0.5), Point("b", 1, math.nan), Point("c", math.inf, 0.1))
    assert not full_dots(svg) and "no numbers yet" in svg
    assert "nan" not in svg and "inf" not in svg
    assert len(full_dots(scattered(Point("a", 0, 0.0)))) == 1  # free of cost, and nothing seen
