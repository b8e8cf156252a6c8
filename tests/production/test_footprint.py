"""How a footprint is measured."""

import pytest

from .footprint import Footprint, Held, size, slope


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(1, 5.0), (2, 7.0), (3, 9.0)], 2.0),
        ([(10, 4.0), (20, 4.0)], 0.0),
        ([(0, 0.0), (1, 3.0), (2, 0.0)], 0.0),  # one peak in the middle is no growth
        ([(0, 0.0), (1, 0.0), (2, 3.0)], 1.5),  # (-1 * -1 + 0 * -1 + 1 * 2) / 2
    ],
)
def test_a_slope_is_that_of_least_squares(points, expected):
    assert slope(points) == pytest.approx(expected)


def test_one_copy_of_a_model_more_in_every_round_is_its_size():
    model = 27_165_080
    held = {round: Held(800_000_000 + round * model, 0, 20, 9) for round in range(1, 9)}
    seen = Footprint({"server job": held}, {}, 1.0)
    assert seen.slopes("rss", since=3) == {"server job": pytest.approx(model)}
    assert seen.counts("threads", 8) == {"server job": 20}


def test_the_least_is_taken_of_each_number():
    assert Held(1, 9, 3, 7).least(Held(2, 8, 4, 6)) == Held(1, 8, 3, 6)


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    (tmp_path / "c").write_bytes(b"123")
    assert size(tmp_path) == 8
