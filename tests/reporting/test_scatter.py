"""Points of a scatter plot: where they lie, that names do not overlap, and what is left out."""

import math
import re
from itertools import pairwise

import pytest

from shared_components.reporting.charts import Point, _apart, scatter


def drawn(*points: Point, size: tuple[int, int] = (530, 330)) -> str:
    return scatter(points, title="Dice and MB", x_label="MB", y_label="Dice", size=size)


def dots(svg: str) -> list[tuple[float, float]]:
    """Give the places of the full dots, in the order drawn: from the highest value to the lowest."""
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="4.5"', svg)]


def names(svg: str) -> dict[str, float]:
    found = re.findall(r'<text x="[\d.]+" y="([\d.]+)" text-anchor="start" class="cell">([^<]*)', svg)
    return {name: float(y) for y, name in found}


def test_more_cost_is_further_right_from_zero_and_more_score_is_higher() -> None:
    svg = drawn(Point("a", 0, 0.8), Point("b", 10, 0.6), Point("c", 20, 0.4))
    (first, second, third) = dots(svg)
    assert first[0] == 54 and second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.11)
    assert second[1] - first[1] == pytest.approx(third[1] - second[1], abs=0.11) and first[1] < second[1]


def test_the_worst_site_is_drawn_on_the_same_line() -> None:
    svg = drawn(Point("a", 5, 0.8, 0.2))
    [(x, y)] = dots(svg)
    [(other, low)] = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5"', svg)
    assert float(other) == x and float(low) > y
    assert "<title>a: 0.8000 at 5.000, worst site 0.2000</title>" in svg


@pytest.mark.parametrize("size", [(530, 330), (338, 330)])
def test_names_of_equal_points_do_not_overlap_and_stay_inside(size: tuple[int, int]) -> None:
    svg = drawn(*(Point(f"method {i}", 5, 0.5) for i in range(30)), size=size)
    places = sorted(names(svg).values())
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', svg).group(1))
    assert len(places) == 30 and places[0] > 40 and places[-1] < height - 20
    assert min(b - a for a, b in pairwise(places)) >= 14.9


def test_spread_moves_only_what_is_too_near() -> None:
    assert _apart([20, 100, 104], 10, 200) == [20, 100, 115]
    assert _apart([190, 195], 10, 200) == [185, 200]


def test_a_long_name_is_cut_and_stands_in_full_in_its_tooltip() -> None:
    svg = drawn(Point("<a name that is far too long for its column>", 1, 0.5))
    assert [name for name in names(svg) if name.endswith("…") and len(name) < 30]
    assert "<title>&lt;a name that is far too long for its column&gt;:" in svg


def test_what_has_no_number_is_left_out_and_nothing_at_all_is_said() -> None:
    svg = drawn(Point("a", math.nan, 0.5), Point("b", 1, math.nan), Point("c", math.inf, 0.1))
    assert not dots(svg) and "no numbers yet" in svg
    assert "nan" not in svg and "inf" not in svg
    assert len(dots(drawn(Point("a", 0, 0.0)))) == 1  # free of cost, and nothing seen
