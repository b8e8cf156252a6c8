"""Segmentation of clips and of prompted objects."""

import math

import numpy as np
import pytest
import torch

from shared_components.core.task import make_task
from shared_components.data.samples import Item

CLASSES = ("background", "shaft", "wrist")
CLIPS = {"frames": 2, "interval": 0.5, "targets_of": "all"}
PAPER = {"cross_entropy": 1.0, "log_iou": 0.0}


def task(**numbers):
    return make_task("segmentation", {**PAPER, **numbers}, classes=CLASSES)


def clip():
    """Logits (1, T, C, H, W) and labels (1, T, H, W) of two frames; only the later frame has the second class."""
    logits = torch.randn(1, 2, 3, 2, 4, generator=torch.Generator().manual_seed(1))
    label = torch.tensor([[[[1, 1, 0, 0], [0, 0, 0, 0]], [[0, 1, 1, 0], [2, 2, 0, 0]]]])
    return logits, label


def test_the_loss_of_a_clip_is_that_of_its_frames_together():
    logits, label = clip()
    single = task()
    each = [single.loss(logits[:, t], {"label": label[:, t]}).item() for t in (0, 1)]
    assert task(**CLIPS).loss(logits, {"label": label}).item() == pytest.approx(sum(each) / 2)


def test_a_network_or_label_of_the_current_frame_alone_is_trained_on_that_frame():
    logits, label = clip()
    last = task().loss(logits[:, 1], {"label": label[:, 1]})
    assert torch.equal(task(**CLIPS).loss(logits[:, 1], {"label": label}), last)
    assert torch.equal(task().loss(logits, {"label": label[:, 1]}), last)


def test_a_class_that_no_box_names_counts_as_background():
    logits, label = clip()
    prompted = task(**CLIPS, prompts="first")
    batch = prompted.add_randomness({"image": torch.zeros(1, 2, 3, 2, 4), "label": label}, torch.Generator())
    assert batch["boxes"][0, 0, 0].tolist() == [0, 0, 2, 1]
    assert batch["boxes"][0, 0, 1].isnan().all() and batch["boxes"][0, 1].isnan().all()
    without = torch.where(label == 2, 0, label)
    assert torch.equal(prompted.loss(logits, batch), task(**CLIPS).loss(logits, {"label": without}))


def test_a_single_frame_is_prompted_as_a_clip_of_one_and_evaluation_has_prompts_of_its_own():
    logits, label = clip()
    single = task(prompts="first")
    batch = single.add_randomness({"image": torch.zeros(1, 3, 2, 4), "label": label[:, 0]}, torch.Generator())
    assert batch["boxes"].shape == (1, 1, 2, 4) and batch["boxes"][0, 0, 0].tolist() == [0, 0, 2, 1]
    of_clip = single.loss(logits[:, :1], {"label": label[:, :1], "boxes": batch["boxes"]})
    assert torch.equal(single.loss(logits[:, 0], batch), of_clip)
    prompting = task(**CLIPS, prompts="every_second", jitter=0.1, evaluation_prompts="first").prompting
    assert (prompting.training.rule, prompting.training.jitter) == ("every_second", 0.1)
    assert (prompting.evaluation.rule, prompting.evaluation.jitter) == ("first", 0.0)
    assert task(**CLIPS).prompting is None and task(**CLIPS).card.inputs == ("image",)


def test_the_released_loss_is_added_by_its_weight():
    logits, label = clip()
    plain, released = task(), task(cross_entropy=0.0, objects=1.0)
    both = task(objects=0.5).loss(logits, {"label": label})
    expected = plain.loss(logits, {"label": label}) + 0.5 * released.loss(logits, {"label": label})
    assert both.item() == pytest.approx(expected.item())


def test_answers_and_scores_are_of_the_current_frame():
    logits, label = clip()
    [answer] = task(**CLIPS).postprocess(logits, {}, [(2, 4)])
    assert np.array_equal(answer, logits[0, 1].argmax(0).numpy())
    item = Item(np.zeros((2, 2, 4, 3), np.uint8), {"label": label[0].numpy().astype(np.uint8)}, "")
    assert task(**CLIPS).score(label[0, 1].numpy().astype(np.uint8), item, quick=True).dice.tolist() == [1, 1]
    assert task(**CLIPS).sheet(answer, item).panels


def test_the_losses_stay_float32_under_bfloat16():
    logits, label = clip()
    batch = {"label": label, "boxes": torch.zeros(1, 2, 2, 4)}
    exact = task(**CLIPS, prompts="first", objects=1.0).loss(logits.bfloat16().float(), batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = task(**CLIPS, prompts="first", objects=1.0).loss(logits.bfloat16(), batch)
    assert mixed.dtype == torch.float32 and mixed.item() == pytest.approx(exact.item(), rel=1e-6)


@pytest.mark.parametrize(("numbers", "says"), [
    ({"prompts": "last"}, "segmentation: prompts is 'last'; use one of none, first, every_second"),
    ({"prompts": "first", "frames": 2, "interval": 1.0}, "write targets_of: all and padding: first, or"),
    ({"prompts": "first", **CLIPS, "padding": "current"}, "write targets_of: all and padding: first"),
    ({"evaluation_prompts": "none"}, "evaluation_prompts is 'none'"),
    ({"jitter": 0.5}, "jitter is 0.5; it is a number, at least 0 and below 0.5"),
    ({"targets_of": "first"}, "targets_of is 'first'; use one of last, all"), ({"objects": -1}, "objects is -1"),
    ({"objects": math.nan}, "objects is nan"),
])  # fmt: skip
def test_wrong_numbers_are_refused_by_name(numbers, says):
    with pytest.raises(ValueError, match=says):
        task(**numbers)


def test_the_iou_per_image_is_scored_first_where_it_is_asked_for_with_its_spread_over_images():
    asked, truth = task(image_iou=True), np.array([[0, 1], [1, 2]], np.uint8)
    item = Item(np.zeros((1, 2, 2, 3), np.uint8), {"label": truth}, "a")
    scores = [asked.score(answer, item, quick=True) for answer in (truth, np.zeros_like(truth))]
    result = asked.summarise(scores)
    assert result["image_iou"]["mean"] == pytest.approx((1 + 1 / 12) / 2)  # 1; and 1/4, 0 and 0 over three classes
    assert result["std"]["image_iou"] == pytest.approx((1 - 1 / 12) / 2)
    assert [row["image_iou"] for row in asked.rows(scores[1])] == pytest.approx([1 / 12, 1 / 12])
    assert asked.metrics[0].name == "image_iou" and task().metrics[0].name == "dice"
    plain = task()
    assert "image_iou" not in plain.summarise([plain.score(truth, item, quick=True)])
    with pytest.raises(ValueError, match="segmentation: image_iou is 1"):
        task(image_iou=1)
