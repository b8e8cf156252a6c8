"""The frames of a sample and its targets move together, and only as they were told to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shared_components.data.transforms import (
    Augmentation,
    augment,
    resize_image,
    resize_target,
    sample_augmentation,
    sample_turn,
    to_tensors,
    turn,
)
from tests.data.conftest import canonical_mask

UNCHANGED = Augmentation(flip_horizontal=False, flip_vertical=False, width=4, left=0.0, top=0.0)


def moved(image: np.ndarray, mask: np.ndarray, augmentation: Augmentation) -> tuple[np.ndarray, np.ndarray]:
    """Augment one frame and its mask."""
    images, targets = augment(image[None], {"label": mask}, augmentation)
    return images[0], targets["label"]


def frame_that_shows_its_mask() -> tuple[np.ndarray, np.ndarray]:
    """Return a 2x4 mask of eight ids and the image that has 10 times its id in each channel."""
    mask = np.arange(8, dtype=np.uint8).reshape(2, 4)
    return np.dstack([mask * 10] * 3), mask


def with_(**changes: object) -> Augmentation:
    return Augmentation(**{**UNCHANGED.__dict__, **changes})


@pytest.mark.parametrize(
    ("augmentation", "expected"),
    [
        (UNCHANGED, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (with_(flip_horizontal=True), [[3, 2, 1, 0], [7, 6, 5, 4]]),
        (with_(flip_vertical=True), [[4, 5, 6, 7], [0, 1, 2, 3]]),
        (with_(flip_horizontal=True, flip_vertical=True), [[7, 6, 5, 4], [3, 2, 1, 0]]),
        (with_(width=8), [[0, 0, 1, 1], [0, 0, 1, 1]]),
        (with_(width=8, left=0.999, top=0.999), [[6, 6, 7, 7], [6, 6, 7, 7]]),
        (with_(width=8, left=0.4), [[1, 1, 2, 2], [1, 1, 2, 2]]),
        (with_(width=8, left=0.999, flip_horizontal=True), [[1, 1, 0, 0], [1, 1, 0, 0]]),
    ],
)
def test_a_mask_is_flipped_scaled_and_cropped_as_told_and_its_image_with_it(augmentation, expected):
    image, mask = moved(*frame_that_shows_its_mask(), augmentation)
    assert mask.tolist() == expected
    if augmentation.width == 4:  # nothing is interpolated
        np.testing.assert_array_equal(image, np.dstack([mask * 10] * 3))


def test_a_smaller_frame_is_padded_with_zeros_at_the_right_and_the_bottom():
    image, mask = np.full((2, 4, 3), 9, dtype=np.uint8), np.full((2, 4), 3, dtype=np.uint8)
    new_image, new_mask = moved(image, mask, with_(width=2, left=0.9, top=0.9))
    assert new_mask.tolist() == [[3, 3, 0, 0], [0, 0, 0, 0]]
    assert new_image[:, :, 0].tolist() == [[9, 9, 0, 0], [0, 0, 0, 0]]


def sampled(seed: int, count: int, **options: object) -> list[Augmentation]:
    generator = torch.Generator().manual_seed(seed)
    return [sample_augmentation(generator, **options) for _ in range(count)]


def test_what_is_sampled_stays_in_its_range_and_uses_it():
    drawn = sampled(0, 400, width=64)
    assert {min(d.width for d in drawn), max(d.width for d in drawn)} <= {*range(32, 36), *range(124, 129)}
    assert 160 < sum(d.flip_horizontal for d in drawn) < 240
    assert 160 < sum(d.flip_vertical for d in drawn) < 240
    assert all(0 <= d.left < 1 and 0 <= d.top < 1 for d in drawn)
    assert drawn == sampled(0, 400, width=64)


def test_without_flips_nothing_is_mirrored_and_the_rest_is_drawn_alike():
    drawn, usual = sampled(3, 100, width=100, flips=False), sampled(3, 100, width=100)
    assert not any(d.flip_horizontal or d.flip_vertical for d in drawn)
    assert [(d.width, d.left, d.top) for d in drawn] == [(d.width, d.left, d.top) for d in usual]


def test_other_ends_of_the_scale_are_used_and_the_rest_is_drawn_alike():
    drawn, usual = sampled(3, 400, width=100, smallest=0.75, largest=2.25), sampled(3, 400, width=100)
    assert {min(d.width for d in drawn), max(d.width for d in drawn)} <= {*range(75, 79), *range(222, 226)}
    assert [(d.flip_horizontal, d.left) for d in drawn] == [(d.flip_horizontal, d.left) for d in usual]


def test_labels_stay_labels_and_keep_to_their_image_under_every_augmentation():
    mask = canonical_mask(2)
    image = np.dstack([mask * 60] * 3)
    generator = torch.Generator().manual_seed(0)

    for _ in range(100):
        new_image, new_mask = moved(image, mask, sample_augmentation(generator, width=80))
        assert (new_image.shape, new_mask.shape) == (image.shape, mask.shape)
        assert new_mask.dtype == np.uint8
        assert set(np.unique(new_mask)) <= {0, 1, 2, 3}
        # The image is interpolated at the edges of the parts only.
        agrees = np.abs(new_image[:, :, 0].astype(int) - new_mask * 60) <= 30
        assert agrees.mean() > 0.97


@pytest.mark.parametrize(
    ("pixels", "size", "expected"),
    [
        ([[0, 100], [100, 200]], (1, 1), [[100]]),  # averaged where it shrinks
        ([[0, 100]], (1, 4), [[0, 25, 75, 100]]),  # interpolated where it grows
    ],
)
def test_an_image_is_averaged_or_interpolated(pixels, size, expected):
    image = np.dstack([np.array(pixels, dtype=np.uint8)] * 3)
    assert resize_image(image, *size).tolist() == np.dstack([expected] * 3).tolist()


def test_a_target_is_resized_without_new_values():
    mask = np.array([[0, 1, 2, 3, 4, 5]], dtype=np.uint8).repeat(6, axis=0)
    assert resize_target(mask, 6, 2)[0].tolist() == [1, 4]  # the centre of the pixel
    depth = np.array([[200, 0], [50, 60]], np.float32)
    assert set(resize_target(depth, 4, 4).ravel()) == {0.0, 50.0, 60.0, 200.0}


def test_a_frame_of_the_right_size_is_not_touched():
    image, mask = frame_that_shows_its_mask()
    assert resize_image(image, 2, 4) is image
    assert resize_target(mask, 2, 4) is mask


def test_tensors_are_channels_first_and_share_no_memory():
    image, mask = frame_that_shows_its_mask()
    clip = to_tensors(np.stack([image, image + 1]), {})
    tensors = to_tensors(image[None], {"label": mask})
    image[:], mask[:] = 255, 255
    assert clip["image"].shape == (2, 3, 2, 4) and list(clip) == ["image"]
    assert tensors["image"].shape == (3, 2, 4)
    assert tensors["image"][2].tolist() == [[0, 10, 20, 30], [40, 50, 60, 70]]
    assert tensors["label"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_all_frames_of_a_clip_and_all_targets_move_alike():
    image, mask = frame_that_shows_its_mask()
    clip = np.stack([image, image + 1, image + 2])
    depth = mask.astype(np.float32) + 0.25  # mask and augmentation are worked out in tests above
    augmentation = with_(width=8, left=0.4, flip_horizontal=True)

    images, targets = augment(clip, {"label": mask, "depth": depth}, augmentation)

    alone, label = moved(image, mask, augmentation)
    for number, frame in enumerate(images):
        np.testing.assert_array_equal(frame, alone + number)
    np.testing.assert_array_equal(targets["label"], label)
    np.testing.assert_array_equal(targets["depth"], (label + np.float32(0.25)) / 2)  # no depth is made up
    assert targets["depth"].dtype == np.float32


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (4, [[200, 0, 30, 40], [50, 60, 70, 80]]),  # no zoom
        (8, [[100, 100, 0, 0], [100, 100, 0, 0]]),  # twice as large, half as far; 0 stays unknown
        (2, [[120, 160, 0, 0], [0, 0, 0, 0]]),  # half as large, twice as far; padding is unknown
    ],
)
def test_depth_is_divided_by_the_zoom(width, expected):
    """Of 2 x 4 pixels: a crop at the top left, and each edge stays an edge."""
    depth = np.array([[200, 0, 30, 40], [50, 60, 70, 80]], np.float32)
    image = np.zeros((1, 2, 4, 3), np.uint8)
    targets = augment(image, {"depth": depth, "label": depth.astype(np.uint8)}, with_(width=width))[1]
    np.testing.assert_array_equal(targets["depth"], np.array(expected, np.float32))
    assert set(targets["label"].ravel()) <= {0, 200, 30, 40, 50, 60, 70, 80}


def test_a_turn_of_90_degrees_is_numpys():
    images = np.random.default_rng(0).integers(0, 255, (2, 9, 9, 3)).astype(np.uint8)
    label = np.random.default_rng(1).integers(0, 4, (9, 9)).astype(np.uint8)
    turned, targets = turn(images, {"label": label}, 90.0)
    assert np.array_equal(turned, np.rot90(images, axes=(1, 2)))
    assert np.array_equal(targets["label"], np.rot90(label))


def test_a_turn_keeps_the_middle_makes_up_no_id_and_fills_with_zeros():
    label = np.full((31, 41), 3, dtype=np.uint8)
    label[15, 20] = 1
    _, targets = turn(np.zeros((1, 31, 41, 3), np.uint8), {"label": label}, 30.0)
    assert targets["label"][15, 20] == 1 and targets["label"][0, 0] == 0
    assert set(np.unique(targets["label"])) == {0, 1, 3}


def test_no_turn_draws_nothing_and_returns_the_same_frames():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    images = np.zeros((1, 4, 4, 3), np.uint8)
    assert turn(images, {}, sample_turn(generator, 0.0))[0] is images
    assert torch.equal(generator.get_state(), before)


def test_turns_are_uniform_between_both_ends():
    generator = torch.Generator().manual_seed(2)
    drawn = np.array([sample_turn(generator, 20.0) for _ in range(4000)])
    assert -20 <= drawn.min() < -19.9 and 19.9 < drawn.max() <= 20
    assert abs(drawn.mean()) < 0.6 and abs(drawn.std() - 20 / np.sqrt(3)) < 0.3
