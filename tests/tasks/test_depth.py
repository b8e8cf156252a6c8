"""Depth: errors worked by hand, unknown depth left out, files and pictures."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core.task import make_task
from shared_components.data.samples import Item

DEPTH = make_task("depth")


def item(truth, height=2, width=2):
    depth = np.array(truth, np.float32).reshape(height, width)
    return Item(np.zeros((1, height, width, 3), np.uint8), {"depth": depth}, "video-1")


def predicted(values, height=2, width=2):
    return np.array(values, np.float32).reshape(height, width)


def test_errors_of_three_known_pixels_are_those_worked_by_hand():
    """Truth 1, 2, 4 and unknown; prediction 1, 4, 2 and anything: differences 0, 2, 2; ratios 1, 2, 2."""
    score = DEPTH.score(predicted([1, 4, 2, 900]), item([1, 2, 4, 0]), quick=False)
    assert score["rmse"] == pytest.approx(math.sqrt(8 / 3))
    assert score["mae"] == pytest.approx(4 / 3)
    assert score["abs_rel"] == pytest.approx((0 + 1 + 0.5) / 3)
    assert score["sq_rel"] == pytest.approx((0 + 4 / 2 + 4 / 4) / 3)
    assert score["rmse_log"] == pytest.approx(math.log(2) * math.sqrt(2 / 3))
    assert [score[f"delta{power}"] for power in (1, 2, 3)] == pytest.approx([1 / 3] * 3)
    assert score["rmse_scaled"] == pytest.approx(score["rmse"])  # both medians are 2


def test_thresholds_are_powers_of_five_quarters_and_scaled_errors_forgive_a_wrong_scale():
    """Ratios 1.2, 1.5, 1.9 and 2.0 against 1.25, 1.5625 and 1.953."""
    score = DEPTH.score(predicted([12, 15, 19, 20]), item([10, 10, 10, 10]), quick=False)
    assert [score[f"delta{power}"] for power in (1, 2, 3)] == [0.25, 0.5, 0.75]
    score = DEPTH.score(predicted([3, 6, 9, 12]), item([1, 2, 3, 4]), quick=False)
    assert score["rmse_scaled"] == pytest.approx(0) and score["abs_rel_scaled"] == pytest.approx(0)
    assert score["abs_rel"] == pytest.approx(2) and score["mae"] == pytest.approx(5)


def test_a_frame_without_known_depth_counts_in_no_mean():
    nothing = DEPTH.score(predicted([1, 1, 1, 1]), item([0, 0, 0, 0]), quick=False)
    assert all(map(math.isnan, nothing.values()))
    summary = DEPTH.summarise([nothing, DEPTH.score(predicted([2, 1, 1, 1]), item([1, 0, 0, 0]), quick=False)])
    assert summary["mae"]["mean"] == 1 and summary["frames"] == 2
    assert DEPTH.summarise([nothing])["rmse"]["mean"] is None


def test_what_is_predicted_as_no_number_is_wrong_and_lower_errors_are_better():
    score = DEPTH.score(predicted([math.nan] * 4), item([55, 55, 55, 0]), quick=True)
    assert score["rmse"] == score["mae"] == 200 and score["delta3"] == 0
    assert DEPTH.metrics[0].name == "rmse" and DEPTH.metrics[0].better(1.0, 2.0)
    assert [metric.name for metric in DEPTH.metrics] == list(score)


def depths(seed):
    """Return predictions of three images, and truth that is unknown in part."""
    generator = torch.Generator().manual_seed(seed)
    outputs, truth = (50 + 100 * torch.rand(3, 3, 4, generator=generator) for _ in range(2))
    truth[truth < 80] = 0
    return outputs, truth


def scalar_loss(outputs, truth, scale=100.0, log_error=1.0, variance=0.5, absolute=0.1):
    """The definition, pixel by pixel; None without known depth."""
    pairs = [(p, t) for p, t in zip(outputs.flatten().tolist(), truth.flatten().tolist(), strict=True) if t > 0]
    if not pairs:
        return None
    ratios = [math.log(p) - math.log(t) for p, t in pairs]
    mean = sum(ratios) / len(ratios)
    spread = math.sqrt(sum(r * r for r in ratios) / len(ratios) - variance * mean * mean)
    return log_error * spread + absolute * sum(abs(p - t) for p, t in pairs) / len(pairs) / scale


def test_the_loss_is_a_scalar_loop_over_known_pixels():
    (outputs, truth), numbers = depths(3), {"scale": 40.0, "log_error": 2.0, "variance": 0.85, "absolute": 0.3}
    expected = pytest.approx(scalar_loss(outputs, truth, **numbers), rel=1e-5)
    assert float(make_task("depth", numbers).loss(outputs, {"depth": truth})) == expected


def test_the_loss_of_an_image_is_a_scalar_loop_and_an_image_without_depth_counts_for_nothing():
    outputs, truth = depths(4)
    truth[1] = 0
    losses = [scalar_loss(*image) for image in zip(outputs, truth, strict=True)]
    assert losses[1] is None
    expected = pytest.approx((losses[0] + losses[2]) / 2, rel=1e-5)
    assert float(make_task("depth", {"pooling": "image"}).loss(outputs, {"depth": truth})) == expected


@pytest.mark.parametrize("truth", [[[[0.0, 0.0]]], [[[5.0, 5.0]]]])
def test_the_loss_has_a_finite_gradient_where_nothing_is_known_or_all_is_right(truth):
    outputs = torch.full((1, 1, 2), 5.0, requires_grad=True)
    DEPTH.loss(outputs, {"depth": torch.tensor(truth)}).backward()
    assert torch.isfinite(outputs.grad).all()


class Flat(nn.Module):
    """One channel of zeros."""

    def forward(self, image):
        return image.new_zeros(len(image), 1, *image.shape[2:])


def test_predictions_are_positive_millimetres_at_the_size_asked_for():
    """softplus(0) = ln 2, times the scale of 100."""
    batch = {"image": torch.zeros(2, 3, 4, 4)}
    outputs = DEPTH.predict(Flat(), batch)
    assert outputs.shape == (2, 4, 4)
    answers = DEPTH.postprocess(outputs, batch, [(4, 4), (8, 6)])
    assert [a.shape for a in answers] == [(4, 4), (8, 6)] and answers[1].dtype == np.float32
    assert np.allclose(answers[1], 100 * math.log(2))


def test_the_error_in_pixels_is_of_depths_stretched_to_0_to_255():
    """Truth 10, 20, 30 becomes 0, 127.5, 255; prediction 1, 3, 2 becomes 0, 255, 127.5; the fourth is unknown."""
    score = DEPTH.score(predicted([1, 3, 2, 900]), item([10, 20, 30, 0]), quick=True)
    assert score["rmse_pixels"] == pytest.approx(127.5 * math.sqrt(2 / 3))
    assert DEPTH.score(predicted([5, 5, 5, 5]), item([7, 7, 7, 7]), quick=True)["rmse_pixels"] == 0
    moved = DEPTH.score(predicted([12, 14, 16, 18]), item([1, 2, 3, 4]), quick=True)
    assert moved["rmse_pixels"] == pytest.approx(0)


CLIPS = {"frames": 2, "interval": 0.4, "targets_of": "all"}


def test_surgfeds_loss_of_a_clip_is_the_absolute_error_of_all_its_frames():
    task = make_task("depth", {"log_error": 0.0, "absolute": 1.0, "scale": 10.0, **CLIPS})
    outputs = torch.tensor([[[[1.0, 5.0]], [[2.0, 9.0]]]])  # (B, T, H, W)
    truth = torch.tensor([[[[2.0, 0.0]], [[5.0, 9.0]]]])
    assert task.loss(outputs, {"depth": truth}).item() == pytest.approx((1 + 3 + 0) / 3 / 10)
    assert task.loss(outputs[:, -1], {"depth": truth}).item() == pytest.approx((3 + 0) / 2 / 10)
    [answer] = task.postprocess(outputs, {}, [(1, 2)])
    assert answer.tolist() == [[2.0, 9.0]]  # of the current frame


def test_the_released_activation_is_a_sigmoid_of_255():
    task = make_task("depth", {"activation": "sigmoid"})
    assert torch.equal(task.predict(Flat(), {"image": torch.zeros(1, 3, 2, 2)}), torch.full((1, 2, 2), 127.5))


def test_depth_is_prompted_with_the_whole_frame():
    task = make_task("depth", {**CLIPS, "prompts": "first"})
    batch = {"image": torch.zeros(1, 2, 3, 4, 6), "depth": torch.zeros(1, 2, 4, 6)}
    boxes = task.add_randomness(batch, torch.Generator())["boxes"]
    assert boxes[0, 0, 0].tolist() == [0, 0, 6, 4] and boxes[0, 1].isnan().all()
    assert task.card.inputs == ("image", "boxes") and "boxes around" in task.definitions["prompts"]
    assert task.add_randomness({"image": batch["image"]}, torch.Generator()).keys() == {"image"}
