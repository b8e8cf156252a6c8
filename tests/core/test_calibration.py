"""A score against scipy and by hand, a temperature against probabilities that are known, and files of strangers."""

import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from torch import nn

from shared_components.core import calibration
from shared_components.core.calibration import FILE, Calibration, Facts
from shared_components.core.shipped_weights import sha256_of
from shared_components.networks.checkpoints import CheckpointError, save_weights, write_tensors
from shared_components.networks.tiny import Tiny
from shared_components.weights.shipping import calibration_fits as fits
from shared_components.weights.shipping.calibration_fits import BINS

FACTS = {"weights": "0" * 64, "temperature": 1.5, "offset": 0.0, "limit": 3.0, "limit_of_few": 4.0, "card": {}}


def made(centre, axes, direction=None, **facts):
    centre = torch.as_tensor(centre)
    along = torch.zeros_like(centre) if direction is None else torch.as_tensor(direction)
    return Calibration(Facts(**FACTS | facts), centre, torch.as_tensor(axes), along)


def frames(*means, contrast=None):
    """Return frames (N, 2, D) of these means, and one contrast."""
    rows = torch.tensor(np.array(means), dtype=torch.float32)
    contrasts = torch.zeros_like(rows) if contrast is None else torch.tensor(contrast).expand_as(rows)
    return torch.stack([rows, contrasts], 1)


def ledoit_wolf(rows):
    """Shrink a covariance by loops over the rows, from the formulas of Ledoit and Wolf (2004)."""
    count, size = rows.shape
    covariance = np.mean([np.outer(row, row) for row in rows], axis=0)
    target = np.trace(covariance) / size * np.eye(size)
    error = sum(np.linalg.norm(np.outer(row, row) - covariance) ** 2 for row in rows) / count**2
    share = min(1.0, error / np.linalg.norm(covariance - target) ** 2)
    return share * target + (1 - share) * covariance


def test_distances_are_those_worked_by_hand_and_scipys_with_a_shrunk_covariance():
    centre, axes = fits.reference(torch.tensor([[3.0, 1.0], [-1.0, 1.0], [1.0, 2.0], [1.0, 0.0]]), axes=2)
    # variances 2 and 0.5; error (4 * 4.25) / 16, apart 2 * 0.75 ** 2: a share of 17/18 of their mean 1.25
    long, short = 2 / 18 + 1.25 * 17 / 18, 0.5 / 18 + 1.25 * 17 / 18
    assert centre.tolist() == [1.0, 1.0]
    found = made(centre, axes)
    assert found.score(frames([4.0, 1.0])) == pytest.approx(3 / long**0.5)
    assert found.score(frames([3.0, 6.0], [-1.0, 4.0])) == pytest.approx(4 / short**0.5)  # of the mean
    assert found.score(frames([1.0, 1.0])) == 0 and (found.limit(3), found.limit(4)) == (4.0, 3.0)
    generator = np.random.default_rng(0)
    videos = generator.normal(size=(30, 5)) @ generator.normal(size=(5, 5))
    centre, axes = fits.reference(torch.tensor(videos), axes=5)
    inverse = np.linalg.inv(ledoit_wolf(videos - videos.mean(0)))
    for one in generator.normal(size=(4, 5)):
        found = made(centre.float(), axes).score(frames(one))
        assert found == pytest.approx(mahalanobis(one, videos.mean(0), inverse), rel=1e-4)


def test_a_score_is_the_larger_of_distance_and_position_on_at_most_as_many_axes_as_videos():
    _, axes = fits.reference(torch.randn(4, 20, generator=torch.Generator().manual_seed(0)), axes=16)
    assert axes.shape == (3, 20) and torch.isfinite(axes).all()
    found = made([0.0, 0.0], [[1.0, 0.0]], [2.0, -1.0], offset=-3.0)
    assert found.score(frames([4.0, 9.0], contrast=[4.0, 3.0])) == 4  # and 8 - 3 - 3 = 2
    assert found.score(frames([4.0, 9.0], contrast=[6.0, 3.0])) == 6


def test_the_way_is_numpys_least_squares_with_a_row_a_channel_for_the_ridge():
    generator = np.random.default_rng(0)
    known, others = generator.normal(size=(2, 40, 5)) * np.arange(1, 6)
    others = 0.2 * others[:25] + np.array([1, 0, 0, 2, 0])
    direction, offset = fits.way(torch.tensor(known), torch.tensor(others), ridge=3.0)
    rows = (np.vstack([known, others]) - known.mean(0)) / known.std(0)
    sides = np.array([-1.0] * 40 + [1.0] * 25)
    matrix = np.block([[rows, np.ones((65, 1))], [np.sqrt(3.0 * len(rows)) * np.eye(5), np.zeros((5, 1))]])
    solved, *_ = np.linalg.lstsq(matrix, np.concatenate([sides, np.zeros(5)]))
    for one in known[:3]:
        expected = (one - known.mean(0)) / known.std(0) @ solved[:5] + solved[5]
        assert float(direction.double() @ torch.tensor(one)) + offset == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("times", [0.4, 1.0, 3.0])
def test_the_temperature_of_logits_that_were_multiplied_is_found_and_lowers_the_error(times):
    generator = torch.Generator().manual_seed(1)
    true = torch.randn(20_000, 4, generator=generator) * 2
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]  # so `true` is calibrated
    found = fits.fitted_temperature(true * times, labels)
    assert found == pytest.approx(times, rel=0.05) and fits.calibration_error(true * times, labels, found) < 0.01
    assert times == 1 or fits.calibration_error(true * times, labels) > 0.03


def test_the_error_of_four_pixels_is_that_worked_by_hand():
    logits = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.5, 0.5]]).log()
    # two of 0.9 of which one is right, 0.4 away; one of 0.6, right, 0.4 away; one of 0.5, wrong, 0.5 away
    assert fits.calibration_error(logits, torch.tensor([0, 1, 0, 1])) == pytest.approx((2 * 0.4 + 0.4 + 0.5) / 4)
    assert BINS == 15


def test_maps_are_pooled_at_one_size_to_their_mean_and_the_middle_against_the_border():
    image = torch.zeros(1, 2, 6, 8)
    image[0, 0, 2:4, 2:6] = 12.0  # the middle two of three by four cells
    image[0, 1] = 5.0
    assert torch.allclose(calibration.pooled([image[:, :1], image[:, 1:]]), torch.tensor([[[2.0, 5.0], [12.0, 0.0]]]))
    image[0, 0, 0, 0] = 40.0  # 10 in one of ten cells of the border
    assert torch.allclose(calibration.pooled([image])[0, :, 0], torch.tensor([2.0 + 10 / 12, 11.0]))
    network = Tiny().eval()
    frame = np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    with torch.no_grad():
        expected = calibration.pooled([network.encoder(torch.tensor(frame / 255).float().permute(2, 0, 1)[None])])
    for one in (frame, frame.repeat(2, 0).repeat(2, 1)):
        assert torch.allclose(
            calibration.encoder_features(network, calibration.resized_frame(one)), expected, atol=1e-5
        )
    with pytest.raises(ValueError, match="Conv2d has no encoder"):
        calibration.encoder_features(nn.Conv2d(3, 4, 1), calibration.resized_frame(frame))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(path, {"a": torch.ones(3)})
    return path


def test_a_calibration_is_read_as_it_was_written_and_is_of_its_weights_alone(weights, caplog):
    assert calibration.calibration_of(weights) is None
    path = weights.with_name(FILE)
    calibration.write_calibration(
        path, made([1.0, 2.0], [[0.5, 0.0]], weights=sha256_of(weights), card={"a": [1, None]})
    )
    found = calibration.calibration_of(weights)
    assert found.facts.card == {"a": [1, None]} and found.facts.temperature == 1.5
    assert found.score(frames([5.0, 9.0])) == 2.0
    with pytest.raises(CheckpointError, match="with 2 feature channels, but this network has 3"):
        found.score(torch.ones(1, 2, 3))
    assert caplog.text == ""
    save_weights(weights, {"a": torch.zeros(3)})
    assert calibration.calibration_of(weights) is None and "is for other weights than model.safetensors" in caplog.text


@pytest.mark.parametrize(("tensors", "facts", "sentence"), [
    ({"axes": [[float("nan"), 0.0]]}, {}, "contains NaN or infinity in axes"),
    ({"axes": [[1.0, 0.0, 0.0]]}, {}, "contains tensors of shapes"),
    ({"axes": [1.0, 0.0]}, {}, "contains tensors of shapes"),
    ({"centre": [[1.0, 0.0]]}, {}, "contains tensors of shapes"),
    ({"axes": np.zeros((0, 2), np.float32)}, {}, "contains tensors of shapes"),
    ({"direction": [0.0]}, {}, "contains tensors of shapes"),
    ({"direction": [0.0, float("inf")]}, {}, "contains NaN or infinity in direction"),
    ({}, {"offset": float("nan")}, "offset is nan; it is a number"),
    ({}, {"temperature": 0}, "temperature is 0; it is a number, at least 0.05 and at most 20"),
    ({}, {"temperature": float("nan")}, "temperature is nan; it is a number"),
    ({}, {"limit": float("inf")}, "limit is inf; it is a number"),
    ({}, {"limit_of_few": "4"}, "limit_of_few is '4'; it is a number"),
    ({}, {"weights": None}, "weights is None; it is a text"), ({}, {"more": 1}, "unknown key 'more'"),
])  # fmt: skip
def test_a_file_of_a_stranger_is_refused_in_one_sentence(tmp_path, tensors, facts, sentence):
    path = tmp_path / FILE
    given = {"centre": [0.0, 0.0], "axes": [[1.0, 0.0]], "direction": [0.0, 0.0]} | tensors
    header = {"calibration": json.dumps(FACTS | facts)}
    write_tensors(path, {name: torch.as_tensor(value) for name, value in given.items()}, header)
    with pytest.raises(CheckpointError, match=sentence.replace("(", r"\(")) as refused:
        calibration.read_calibration(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("header", [{}, {"calibration": "no JSON"}, {"calibration": "[" * 9_000}, {"calibration": "3"}])
def test_a_header_that_is_no_calibration_is_refused(tmp_path, header):
    write_tensors(tmp_path / FILE, {"centre": torch.zeros(2), "axes": torch.ones(1, 2)}, header)
    with pytest.raises(CheckpointError):
        calibration.read_calibration(tmp_path / FILE)
