"""Kinds of task: chosen by a site from what a bundle learns, and their cards and metric rows."""

import json
import math

import numpy as np
import pytest

from shared_components.core.bundle import load_bundle
from shared_components.core.card import Card, Metric
from shared_components.core.task import check_tasks, choose_task, make_task, module_names

PARTS = ("background", "shaft")


@pytest.mark.parametrize("kind", module_names("tasks"))
def test_every_kind_says_what_it_is(kind):
    task = make_task(kind, classes=PARTS)
    assert task.card.kind == kind and task.card.frames == 1
    assert task.metrics and len({metric.name for metric in task.metrics}) == len(task.metrics)
    assert {metric.name for metric in task.metrics} <= set(task.definitions)
    assert task.channels >= 1 and Card.from_json(task.card.to_json()) == task.card


def test_segmentation_names_what_is_visible_and_how_much_of_the_picture_it_takes():
    mask = np.zeros((10, 20), np.uint8)
    mask[0, :3] = 2
    found = make_task("segmentation", classes=("background", "shaft", "wrist")).visible(mask)
    assert found == {"shaft": 0.0, "wrist": 1.5}


@pytest.mark.parametrize("kind", sorted(set(module_names("tasks")) - {"segmentation"}))
def test_a_task_without_names_says_nothing_of_what_is_visible(kind):
    assert make_task(kind, classes=PARTS).visible(np.zeros((4, 4))) == {}


def test_a_site_has_the_bundles_first_task_unless_it_names_one_that_the_bundle_learns():
    tasks = {"depth": {"scale": 50}, "segmentation": {}}
    assert choose_task(tasks, "", classes=(), who="site.yaml").scale == 50
    assert choose_task(tasks, "segmentation", classes=PARTS, who="site.yaml").channels == 2
    with pytest.raises(ValueError, match=r"/data/site.yaml: the task is 'depth', but this bundle learns segmentation"):
        choose_task({"segmentation": {}}, "depth", classes=(), who="/data/site.yaml")


@pytest.mark.parametrize("kind, numbers, words", [
    ("segmentatoin", {}, "task 'segmentatoin' does not exist; use one of classification, depth, "),
    ("depth", {"scael": 3}, "scael"), ("depth", {"scale": math.nan}, "scale is nan"),
    ("depth", {"scale": math.inf}, "scale is inf"), ("depth", {"variance": 1.5}, "variance is 1.5"),
    ("depth", {"absolute": True}, "absolute is True"), ("reconstruction", {"patch": 0}, "patch is 0"),
    ("reconstruction", {"patch": 2.0}, "patch is 2.0"), ("reconstruction", {"hidden": 1.0}, "hidden is 1.0"),
    ("reconstruction", {"hidden": math.nan}, "hidden is nan"),
    ("segmentation", {"empty_policy": "none"}, "empty_policy is 'none'"),
    ("segmentation", {"cross_entropy": math.nan}, "cross_entropy is nan"),
    ("segmentation", {"log_iou": -1}, "log_iou is -1"), ("segmentation", {"frames": 0}, "frames is 0"),
    ("depth", {"frames": 4}, "interval"), ("depth", {"pooling": "pixel"}, "pooling is 'pixel'; use one of batch, im"),
    ("depth", {"activation": "relu"}, "activation is 'relu'; use one of softplus, sigmoid"),
])  # fmt: skip
def test_numbers_that_are_wrong_are_refused_before_anything_runs(kind, numbers, words):
    with pytest.raises(ValueError, match=words):
        check_tasks({kind: numbers})


@pytest.mark.parametrize("values", [
    {}, {"kind": 3}, {"kind": "depth", "outputs": "mm", "inputs": ["image"], "frames": 1},
    {"kind": "depth", "outputs": [], "inputs": ["image"], "frames": True},
    {"kind": "depth", "outputs": [None], "inputs": ["image"], "frames": 1},
])  # fmt: skip
def test_what_is_no_card_is_refused(values):
    with pytest.raises(ValueError, match="is not a task card"):
        Card.from_json(values)


def test_a_job_may_change_a_bundles_numbers_and_not_its_kinds():
    assert load_bundle("pvt_fpn", tasks={"depth": {"scale": 80.0}}).tasks["depth"]["scale"] == 80.0
    assert next(iter(load_bundle("pvt_fpn").tasks)) == "segmentation"
    with pytest.raises(ValueError, match="the bundle does not learn 'phases'"):
        load_bundle("pvt_fpn", tasks={"phases": {}})


DICE = Metric("dice", "Dice", True, unit="%", factor=100.0, digits=2)
RMSE = Metric("rmse", "RMSE", False, unit="mm", digits=2)


def test_better_best_and_worst_follow_the_direction_and_ignore_nan():
    assert DICE.better(0.6, 0.5) and not DICE.better(0.5, 0.6) and not DICE.better(0.5, 0.5)
    assert RMSE.better(4.0, 5.0) and not RMSE.better(5.0, 4.0) and not RMSE.better(4.0, 4.0)
    for metric in (DICE, RMSE):
        assert metric.better(1.0, math.nan) and not metric.better(math.nan, 1.0)
        assert not metric.better(math.nan, math.nan)
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
    assert (DICE.with_unit(0.40234), RMSE.with_unit(4.3156), RMSE.with_unit(math.nan)) == ("0.402", "4.32 mm", "–")
    assert Metric("mse", "MSE", False, digits=5).plain_text(0.00123) == "0.00123"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_does_not_exist_is_a_dash(value):
    assert DICE.text(value) == DICE.plain_text(value) == "–"


def test_rows_and_cards_survive_json_and_a_card_has_one_image_by_default():
    card = Card("segmentation", ("background", "shaft"), ("image", "prompt"), frames=4)
    for one in (DICE, RMSE):
        assert Metric.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert Card.from_json(json.loads(json.dumps(card.to_json()))) == card
    assert DICE.to_json() == {
        "name": "dice", "label": "Dice", "higher_is_better": True, "unit": "%", "factor": 100.0, "digits": 2,
            "in_delta": False,
    }  # fmt: skip
    assert card.to_json() == {
        "kind": "segmentation", "outputs": ["background", "shaft"], "inputs": ["image", "prompt"], "frames": 4,
    }  # fmt: skip
    assert Card.from_json({"kind": "depth", "outputs": ["mm"]}) == Card("depth", ("mm",))
