"""How a footprint is measured."""

from pathlib import Path

import nvflare
import pytest

from evidence.production.deployment import OF_START
from evidence.production.footprint import Footprint, Held, size, slope


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


def test_a_job_s_memory_is_what_it_has_told_after_each_round():
    held = {round: Held(9, 9, 20, 7) for round in (2, 3)}
    seen = Footprint({"server job": held, "a job": held, "a parent": held}, {}, 1.0)
    told = {"server job": [(1, 10), (2, 20), (3, 30)], "a job": [(0, 0), (4, 40), (5, 50), (6, 60), (0, 0)]}
    seen = seen.with_jobs(told)
    assert seen.held["server job"] == {2: Held(2, 20, 20, 7), 3: Held(3, 30, 20, 7)}
    assert seen.held["a job"] == {2: Held(5, 50, 20, 7), 3: Held(6, 60, 20, 7)}
    assert seen.held["a parent"] == held


def test_the_least_of_some_rounds_is_that_of_each_process():
    threads = {1: 9, 2: 5, 3: 7, 4: 3}
    held = {round: Held(1, 1, count, 2 * count) for round, count in threads.items()}
    seen = Footprint({"server job": held, "server parent": {r: Held(1, 1, 4, 4) for r in threads}}, {}, 1.0)
    assert seen.least("threads", range(1, 4)) == {"server job": 5, "server parent": 4}
    assert seen.least("files", [4]) == {"server job": 6, "server parent": 4}


def test_the_least_is_taken_of_each_number():
    assert Held(1, 9, 3, 7).least(Held(2, 8, 4, 6)) == Held(1, 8, 3, 6)


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    (tmp_path / "c").write_bytes(b"123")
    assert size(tmp_path) == 8


def test_parties_have_the_arenas_that_a_kit_s_start_sh_gives_them():
    template = Path(nvflare.__file__).with_name("lighter") / "templates" / "master_template.yml"
    text = template.read_text()
    assert OF_START and all(f"export {name}=${{{name}:-{value}}}" in text for name, value in OF_START.items())
