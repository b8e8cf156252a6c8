"""Metric rows: direction, scaling and the two ways in which people read a number."""

import json
import math

import pytest

from shared_components.core.card import Card, Metric

DICE = Metric("dice", "Dice", True, unit="%", factor=100.0, digits=2)
RMSE = Metric("rmse", "RMSE", False, unit="mm", digits=2)


def test_better_follows_the_direction_and_any_number_beats_none():
    assert DICE.better(0.6, 0.5) and not DICE.better(0.5, 0.6) and not DICE.better(0.5, 0.5)
    assert RMSE.better(4.0, 5.0) and not RMSE.better(5.0, 4.0) and not RMSE.better(4.0, 4.0)
    for metric in (DICE, RMSE):
        assert metric.better(1.0, math.nan) and not metric.better(math.nan, 1.0)
        assert not metric.better(math.nan, math.nan)


def test_best_and_worst_follow_the_direction_and_leave_out_what_is_no_number():
    values = [3.0, math.nan, 1.0, 2.0]
    assert (DICE.best(values), DICE.worst(values)) == (3.0, 1.0)
    assert (RMSE.best(values), RMSE.worst(values)) == (1.0, 3.0)
    assert math.isnan(RMSE.best([math.nan])) and math.isnan(DICE.worst([]))


def test_papers_tables_scale_and_a_report_writes_what_is_recorded():
    assert (DICE.heading, DICE.text(0.40234)) == ("Dice (%)", "40.23")
    assert (DICE.plain_heading, DICE.plain_text(0.40234)) == ("Dice", "0.402")
    assert (RMSE.heading, RMSE.text(4.3156)) == ("RMSE (mm)", "4.32")
    assert (RMSE.plain_heading, RMSE.plain_text(4.3156)) == ("RMSE mm", "4.32")
    assert (DICE.plain_text(0.40234, rounder=1), RMSE.plain_text(4.3156, rounder=1)) == ("0.40", "4.3")
    assert (DICE.said(0.40234), RMSE.said(4.3156), RMSE.said(math.nan)) == ("0.402", "4.32 mm", "–")
    assert Metric("mse", "MSE", False, digits=5).plain_text(0.00123) == "0.00123"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_does_not_exist_is_a_dash(value):
    assert DICE.text(value) == DICE.plain_text(value) == "–"


def test_rows_and_cards_survive_json():
    card = Card("segmentation", ("background", "shaft"), ("image", "prompt"), frames=4)
    for one in (DICE, RMSE):
        assert Metric.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert Card.from_json(json.loads(json.dumps(card.to_json()))) == card
    assert DICE.to_json() == {
        "name": "dice", "label": "Dice", "higher_is_better": True, "unit": "%", "factor": 100.0, "digits": 2,
    }  # fmt: skip
    assert card.to_json() == {
        "kind": "segmentation", "outputs": ["background", "shaft"], "inputs": ["image", "prompt"], "frames": 4,
    }  # fmt: skip


def test_a_card_has_one_image_unless_it_says_otherwise():
    assert Card.from_json({"kind": "depth", "outputs": ["mm"]}) == Card("depth", ("mm",))
