"""Cards mark stopped trainings and real sites that chose the weights."""

import pytest

from shared_components.core.shipped_weights import chosen_by, mean_of_real, score_rows, steps_text
from shared_components.core.task import make_task


def score(name, where, value):
    return {"name": name, "where": where, "classes": "parts", "frames": 3, "dice": {"mean": value}}


METRIC = make_task("segmentation", {}, classes=("background", "tool")).metrics[0].to_json()


@pytest.fixture
def facts():
    scores = [score("rose", "named look", 0.5), score("A, 1", "real", 0.25), score("B", "real", 0.75)]
    by = {"x": {"A, 1": 0.2, "unseen look": 0.6, "mean": 0.4}, "y": {"A, 1": 0.1, "unseen look": 0.5, "mean": 0.3}}
    return {
        "metric": METRIC,
        "scores": scores,
        "choice": {"by": "8 unseen looks of each of random, A, 1", "scores": by},
    }


@pytest.mark.parametrize(("steps", "sizes", "said"), [
    (3500, ["96x96:3000", "128x128:500"], "3,500 steps"),
    (5012, ["96x96:9000", "128x128:4500"], "5,012 of 13,500 steps, stopped early"),
    (13524, ["64x64:13524"], "13,524 steps"),
])  # fmt: skip
def test_steps_say_how_many_the_command_asks_for_where_it_was_stopped(steps, sizes, said):
    assert steps_text({"steps": steps, "sizes": sizes}) == said


def test_only_real_sites_that_chose_the_weights_are_marked(facts):
    assert chosen_by(facts) == {"A, 1"}
    assert [row[0] for row in score_rows(facts)] == ["rose", "mean of 1 named look", r"A, 1 \*", "B"]
    (mean,) = mean_of_real(facts)
    assert mean["name"] == "mean of 2 real sites, of which 1 chose the weights, parts" and mean["dice"]["mean"] == 0.5
    for choice in ({}, {"choice": {"by": "A, 1"}}, {"choice": {"by": "", "scores": {}}}):
        plain = {key: value for key, value in facts.items() if key != "choice"} | choice
        assert chosen_by(plain) == frozenset()
        assert [mean["name"] for mean in mean_of_real(plain)] == ["mean of 2 real sites, parts"]
