"""Charts: well-formed SVG whose marks stand where the numbers say."""

import math
import re
from xml.etree import ElementTree

import pytest

from shared_components.reporting.charts import Series, heat_map, line_chart, stacked_bars, swatch


def marks(svg: str, tag: str) -> list[ElementTree.Element]:
    return [element for element in ElementTree.fromstring(svg).iter() if element.tag == tag]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in marks(svg, "text")]


def curve(points: dict[int, float], name: str = "a") -> str:
    return line_chart([Series(name, points, 0)], title="Dice", y_label="Dice", y_range=(0, 1))


def test_every_value_is_a_dot_with_its_number() -> None:
    tips = [element.text for element in marks(curve({0: 0.25, 1: 0.5}), "title")]
    assert tips == ["a, round 1: 0.2500", "a, round 2: 0.5000"]


def test_axes_count_rounds_from_one() -> None:
    named = [text for text in texts(curve({0: 0.25, 1: 0.5, 2: 0.6})) if text.isdigit()]
    assert named == ["1", "2", "3"]
    bars = stacked_bars({0: {"a": 1.0}, 1: {"a": 1.0}}, ["a"], title="t", y_label="s", top=1)
    assert [text for text in texts(bars) if text.isdigit()] == ["1", "2"]
    assert [element.text for element in marks(bars, "title")] == ["round 1, a: 1.000", "round 2, a: 1.000"]
    many = stacked_bars({r: {"a": 1.0} for r in range(100)}, ["a"], title="t", y_label="s", top=1)
    assert [text for text in texts(many) if text.isdigit()][:2] == ["10", "20"]


def test_a_higher_value_stands_higher_and_in_proportion() -> None:
    heights = [float(dot.get("cy", "nan")) for dot in marks(curve({0: 0.0, 1: 0.5, 2: 1.0}), "circle")]
    assert heights[0] > heights[1] > heights[2]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)


def test_a_missing_round_breaks_the_line() -> None:
    path = marks(curve({0: 0.1, 1: 0.2, 4: 0.3, 5: 0.4}), "path")[0].get("d", "")
    assert re.findall("[ML]", path) == ["M", "L", "M", "L"]


def test_nan_breaks_the_line_and_has_no_dot() -> None:
    svg = curve({0: 0.1, 1: math.nan, 2: 0.3})
    assert len(marks(svg, "circle")) == 2
    assert "nan" not in svg


def test_without_numbers_the_chart_says_so() -> None:
    assert "no numbers yet" in texts(line_chart([], title="Dice", y_label="Dice"))
    assert "no numbers yet" in texts(curve({0: math.nan}))


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e-7, 3e-7], [1e9, 2e9], [-1.0, 1.0]])
def test_any_range_gets_ticks_that_cover_it(values: list[float]) -> None:
    svg = line_chart([Series("a", dict(enumerate(values)), 0)], title="t", y_label="y")
    dots = [float(dot.get("cy", "nan")) for dot in marks(svg, "circle")]
    assert all(59 < y < 305 - 48 for y in dots)
    assert len(set(texts(svg))) >= 4


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.61, 0.78], "Dice (axis from 0.60 to 0.80)"),
        ([0.93, 1.0], "Dice (axis from 0.92 to 1.00)"),
        ([0.7], "Dice (axis from 0.685 to 0.700)"),
        ([0.05, 0.9], "Dice"),
        ([0.38, 0.96], "Dice"),  # to leave out 0 would save little
        ([0.42, 0.94], "Dice (axis from 0.4 to 1.0)"),
        ([0.62, 1.3], "Dice (axis from 0.6 to 1.4)"),
        ([-0.2, 0.4], "Dice"),
        ([math.nan], "Dice"),
    ],
)
def test_an_axis_fits_its_values_and_says_where_it_leaves_out_zero(values: list[float], said: str) -> None:
    assert said in texts(line_chart([Series("a", dict(enumerate(values)), 0)], title="t", y_label="Dice"))


def test_a_reference_lies_on_the_axis() -> None:
    svg = line_chart([Series("a", {0: 0.5, 1: 0.6}, 0)], title="t", y_label="y", reference=0.1)
    rule = next(line for line in marks(svg, "line") if line.get("stroke-dasharray"))
    assert 60 <= float(rule.get("y1", "nan")) <= 304 - 48


def test_names_are_escaped() -> None:
    svg = curve({0: 0.1}, name="<script>&\"'")
    assert "<script>" not in svg
    assert marks(svg, "title")[0].text == "<script>&\"', round 1: 0.1000"


def test_bars_stack_without_overlap() -> None:
    svg = stacked_bars({0: {"a": 1.0, "b": 3.0}}, ["a", "b"], title="t", y_label="s")
    low, high = marks(svg, "rect")
    assert float(high.get("height", 0)) == pytest.approx(3 * float(low.get("height", 0)), abs=0.2)
    assert float(high.get("y", 0)) + float(high.get("height", 0)) == pytest.approx(float(low.get("y", 0)), abs=0.2)


def test_two_hundred_rounds_have_readable_ticks() -> None:
    svg = stacked_bars({r: {"a": 1.0} for r in range(200)}, ["a"], title="t", y_label="s")
    numbers = [text for text in texts(svg) if text.isdigit()]
    assert len(numbers) < 25


def test_heat_map_writes_every_weight_and_colours_by_distance_from_equal_shares() -> None:
    svg = heat_map([[0.9, 0.1], [0.5, 0.5]], labels=["1", "2"], title="head", names=["a", "b"], spread=0.4)
    assert [text for text in texts(svg) if "." in text] == ["0.90", "0.10", "0.50", "0.50"]
    cells = marks(svg, "rect")
    assert [cell.get("fill") for cell in cells[:2]] == ["var(--more)", "var(--less)"]
    assert [float(cell.get("fill-opacity", "nan")) for cell in cells] == [0.8, 0.8, 0.0, 0.0]


def test_heat_map_of_an_absent_site_is_empty_cells() -> None:
    svg = heat_map([[math.nan] * 2, [0.5, 0.5]], labels=["1", "2"], title="t", names=["a", "b"], spread=0.1)
    assert texts(svg).count("–") == 2


def test_twenty_series_look_different() -> None:
    assert len({swatch(i) for i in range(20)}) == 20
