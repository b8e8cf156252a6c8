"""Triplets: loss against a scalar loop, scores by video worked by hand, rows and pictures."""

import math

import numpy as np
import pytest
import torch

from shared_components.core.task import check_tasks, make_task
from shared_components.data.files.triplets import NAMES
from shared_components.data.samples import Item

THREE = ("hook/cut/liver", "grasper/grasp/liver", "hook/dissect/gut")
TASK = make_task("triplets", classes=THREE)


def item(truth, video="a", number=0):
    return Item(np.zeros((1, 40, 60, 3), np.uint8), {"triplets": np.array(truth, np.uint8)}, "x", video, number)


def scored(rows, task=TASK):
    return [task.score(np.array(s, np.float32), item(t, video), quick=True) for video, s, t in rows]


def test_focal_loss_equals_a_scalar_loop_and_gamma_0_the_bce():
    logits, truth = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[1, 0, 0]], dtype=torch.uint8)
    total = 0.0
    for logit, true in zip(logits[0].tolist(), truth[0].tolist(), strict=True):
        p = 1 / (1 + math.exp(-logit))
        p = p if true else 1 - p
        total += -((1 - p) ** 3) * math.log(p)
    assert TASK.loss(logits, {"triplets": truth}).item() == pytest.approx(total / 3, rel=1e-5)
    plain = make_task("triplets", {"loss": "bce"}, classes=THREE).loss(logits, {"triplets": truth})
    reference = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth.float())
    assert plain.item() == pytest.approx(reference.item())


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_a_sure_answer_has_a_finite_gradient(gamma):
    outputs = torch.tensor([[30.0, -0.2, 0.0]], requires_grad=True)
    task = make_task("triplets", {"gamma": gamma}, classes=THREE)
    task.loss(outputs, {"triplets": torch.tensor([[1, 0, 0]])}).backward()
    assert outputs.grad.isfinite().all() and outputs.grad[0, 0].abs() < 1e-6


def test_scores_are_means_of_videos_over_the_triplets_that_each_has():
    """Video a has only triplet 0, with precision 1/2; b has triplet 0 with 1 and triplet 1 with 1/2."""
    rows = [
        ("a", [0.9, 0.5, 0.1], [0, 0, 0]), ("a", [0.8, 0.5, 0.1], [1, 0, 0]), ("b", [0.9, 0.7, 0.1], [1, 0, 0]),
        ("b", [0.1, 0.6, 0.1], [0, 1, 0]),
    ]  # fmt: skip
    result = TASK.summarise(scored(rows))
    assert result["map"]["mean"] == pytest.approx((1 / 2 + 3 / 4) / 2)
    assert result["std"]["map"] == pytest.approx(1 / 8)
    assert result["map_classes"]["mean"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert result["classes"] == {THREE[0]: 0.75, THREE[1]: 0.5, THREE[2]: None}
    assert result["frames"] == 4 and result["videos"] == {"count": 2}
    assert TASK.per_video(scored(rows))["b"]["map"] == pytest.approx(3 / 4)


def test_components_are_scored_by_the_largest_of_their_triplets():
    """The hook belongs to triplet 2 in the frame with the highest score of triplet 0."""
    result = TASK.summarise(scored([("a", [0.9, 0.0, 0.1], [0, 0, 1]), ("a", [0.2, 0.5, 0.3], [0, 1, 0])]))
    assert result["map"]["mean"] == pytest.approx((1 + 1 / 2) / 2) and result["map_i"]["mean"] == 1


def test_one_frame_is_scored_by_the_order_of_its_triplets_and_rows_name_what_is_there_or_predicted():
    scores = scored([("a", [0.9, 0.5, 0.1], [0, 1, 0])])
    summary = TASK.summarise(scores)
    assert summary["map"]["mean"] == 0.5 and summary["map_classes"]["mean"] is None
    assert [(row["class"], row["truth"]) for row in TASK.rows(scores[0])] == [(THREE[0], 0), (THREE[1], 1)]
    (nothing,) = scored([("a", [0.1, 0.2, 0.1], [0, 0, 0])])
    assert len(TASK.rows(nothing)) == 1
    assert [metric.name for metric in make_task("triplets", classes=("a", "b")).metrics] == ["map", "map_classes"]
    check_tasks({"triplets": {}})


def test_pictures_of_all_frames_are_equally_large():
    task, image = make_task("triplets", classes=NAMES), np.zeros((40, 60, 3), np.uint8)
    sizes = {task.files(np.random.default_rng(seed).random(100), image)["overlays"].shape for seed in range(3)}
    assert len(sizes) == 1
    sheet = task.sheet(np.full(100, 0.1, np.float32), item(np.zeros(100)))
    assert [panel.name for panel in sheet.panels] == ["truth", "prediction"] and sheet.image().dtype == np.uint8


@pytest.mark.parametrize(("numbers", "classes", "message"), [
    ({"loss": "hinge"}, THREE, "loss is 'hinge'; use one of focal, bce"), ({"gamma": -1}, THREE, "gamma is -1"),
    ({}, ("a",), "needs two classes"), ({}, ("a,b", "c"), "contains a comma"),
])  # fmt: skip
def test_wrong_numbers_and_classes_are_refused(numbers, classes, message):
    with pytest.raises(ValueError, match=message):
        make_task("triplets", numbers, classes=classes)
