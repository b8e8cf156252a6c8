"""Kinds of task: found by listing, chosen by a site from what a bundle learns, and their cards and metrics."""

import math

import numpy as np
import pytest

from shared_components.core.card import Card
from shared_components.core.task import check_tasks, choose_task, make_task, task_kinds
from shared_components.networks.bundle_config import load_bundle

PARTS = ("background", "shaft")


def test_kinds_are_found_by_listing():
    assert {"segmentation", "depth", "reconstruction"} <= set(task_kinds())


@pytest.mark.parametrize("kind", task_kinds())
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


@pytest.mark.parametrize("kind", sorted(set(task_kinds()) - {"segmentation"}))
def test_a_task_without_names_says_nothing_of_what_is_visible(kind):
    assert make_task(kind, classes=PARTS).visible(np.zeros((4, 4))) == {}


def test_a_site_has_the_bundles_first_task_unless_it_names_one():
    tasks = {"depth": {"scale": 50}, "segmentation": {}}
    assert choose_task(tasks, "", classes=(), who="site.yaml").scale == 50
    assert choose_task(tasks, "segmentation", classes=PARTS, who="site.yaml").channels == 2


def test_a_task_that_the_bundle_does_not_learn_is_refused_by_name():
    with pytest.raises(ValueError, match=r"/data/site.yaml: the task is 'depth', and this bundle learns segmentation"):
        choose_task({"segmentation": {}}, "depth", classes=(), who="/data/site.yaml")


@pytest.mark.parametrize(
    "kind, numbers, words",
    [
        ("segmentatoin", {}, "task 'segmentatoin' does not exist; there are depth, "),
        ("depth", {"scael": 3}, "scael"),
        ("depth", {"scale": math.nan}, "scale is nan"),
        ("depth", {"scale": math.inf}, "scale is inf"),
        ("depth", {"variance": 1.5}, "variance is 1.5"),
        ("depth", {"absolute": True}, "absolute is True"),
        ("reconstruction", {"patch": 0}, "patch is 0"),
        ("reconstruction", {"patch": 2.0}, "patch is 2.0"),
        ("reconstruction", {"hidden": 1.0}, "hidden is 1.0"),
        ("reconstruction", {"hidden": math.nan}, "hidden is nan"),
        ("segmentation", {"empty_policy": "none"}, "empty_policy is 'none'"),
        ("segmentation", {"cross_entropy": math.nan}, "cross_entropy is nan"),
        ("segmentation", {"log_iou": -1}, "log_iou is -1"),
        ("segmentation", {"frames": 0}, "frames is 0"),
        ("depth", {"frames": 4}, "interval"),
    ],
)
def test_numbers_that_are_wrong_are_refused_before_anything_runs(kind, numbers, words):
    with pytest.raises(ValueError, match=words):
        check_tasks({kind: numbers})


@pytest.mark.parametrize(
    "values",
    [{}, {"kind": 3}, {"kind": "depth", "outputs": "mm", "inputs": ["image"], "frames": 1},
     {"kind": "depth", "outputs": [], "inputs": ["image"], "frames": True},
     {"kind": "depth", "outputs": [None], "inputs": ["image"], "frames": 1}],
)  # fmt: skip
def test_what_is_no_card_is_refused(values):
    with pytest.raises(ValueError, match="is no task card"):
        Card.from_json(values)


def test_a_job_may_change_a_bundles_numbers_and_not_its_kinds():
    assert load_bundle("pvt_fpn", tasks={"depth": {"scale": 80.0}}).tasks["depth"]["scale"] == 80.0
    assert next(iter(load_bundle("pvt_fpn").tasks)) == "segmentation"
    with pytest.raises(ValueError, match="the bundle does not learn 'phases'"):
        load_bundle("pvt_fpn", tasks={"phases": {}})
