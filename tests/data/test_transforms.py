"""Frames and targets move together, by the augmentation drawn; colours change as drawn."""

import colorsys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from shared_components.data import transforms
from shared_components.data.files.images import DataError
from shared_components.data.targets import form_of, of_last_frame, over_time, refuse_other_form

UNMOVED = transforms.Augmentation(flip_horizontal=False, flip_vertical=False, width=4, left=0.0, top=0.0)


def moved(image: np.ndarray, mask: np.ndarray, augmentation: transforms.Augmentation) -> tuple[np.ndarray, np.ndarray]:
    images, targets = transforms.augment(image[None], {"label": mask}, augmentation)
    return images[0], targets["label"]


def frame_that_shows_its_mask() -> tuple[np.ndarray, np.ndarray]:
    """Return a 2x4 mask of eight ids and the image that has 10 times its id in each channel."""
    mask = np.arange(8, dtype=np.uint8).reshape(2, 4)
    return np.dstack([mask * 10] * 3), mask


def with_(**changes: object) -> transforms.Augmentation:
    return replace(UNMOVED, **changes)


@pytest.mark.parametrize(("augmentation", "expected"), [
    (UNMOVED, [[0, 1, 2, 3], [4, 5, 6, 7]]), (with_(flip_horizontal=True), [[3, 2, 1, 0], [7, 6, 5, 4]]),
    (with_(flip_vertical=True), [[4, 5, 6, 7], [0, 1, 2, 3]]),
    (with_(flip_horizontal=True, flip_vertical=True), [[7, 6, 5, 4], [3, 2, 1, 0]]),
    (with_(width=8), [[0, 0, 1, 1], [0, 0, 1, 1]]),
    (with_(width=8, left=0.999, top=0.999), [[6, 6, 7, 7], [6, 6, 7, 7]]),
    (with_(width=8, left=0.4), [[1, 1, 2, 2], [1, 1, 2, 2]]),
    (with_(width=8, left=0.999, flip_horizontal=True), [[1, 1, 0, 0], [1, 1, 0, 0]]),
])  # fmt: skip
def test_a_mask_and_its_image_are_flipped_scaled_and_cropped(augmentation, expected):
    image, mask = moved(*frame_that_shows_its_mask(), augmentation)
    assert mask.tolist() == expected
    if augmentation.width == 4:  # no interpolation
        np.testing.assert_array_equal(image, np.dstack([mask * 10] * 3))


def test_a_smaller_frame_is_padded_with_zeros_at_the_right_and_the_bottom():
    smaller = with_(width=2, left=0.9, top=0.9)
    image, mask = moved(np.full((2, 4, 3), 9, np.uint8), np.full((2, 4), 3, np.uint8), smaller)
    assert mask.tolist() == [[3, 3, 0, 0], [0, 0, 0, 0]]
    assert image[:, :, 0].tolist() == [[9, 9, 0, 0], [0, 0, 0, 0]]


def sampled(seed: int, count: int, **options: object) -> list[transforms.Augmentation]:
    generator = torch.Generator().manual_seed(seed)
    return [transforms.sample_augmentation(generator, **options) for _ in range(count)]


def test_draws_use_their_range_and_other_options_change_only_their_own_draws():
    drawn = sampled(0, 400, width=64)
    assert {min(d.width for d in drawn), max(d.width for d in drawn)} <= {*range(32, 36), *range(124, 129)}
    assert 160 < sum(d.flip_horizontal for d in drawn) < 240
    assert 160 < sum(d.flip_vertical for d in drawn) < 240
    assert all(0 <= d.left < 1 and 0 <= d.top < 1 for d in drawn)
    assert drawn == sampled(0, 400, width=64)
    usual = sampled(3, 400, width=100)
    unflipped, uncropped = sampled(3, 400, width=100, flips=False), sampled(3, 400, width=100, crops=False)
    scaled = sampled(3, 400, width=100, smallest=0.75, largest=2.25)
    for plain, whole, still, other in zip(usual, uncropped, unflipped, scaled, strict=True):
        assert whole == replace(plain, width=100)
        assert still == replace(plain, flip_horizontal=False, flip_vertical=False)
        assert other == replace(plain, width=other.width)
    assert {min(d.width for d in scaled), max(d.width for d in scaled)} <= {*range(75, 79), *range(222, 226)}


def test_an_image_is_averaged_or_interpolated_and_a_target_gets_no_new_values():
    for pixels, size, expected in (([[0, 100], [100, 200]], (1, 1), [[100]]), ([[0, 100]], (1, 4), [[0, 25, 75, 100]])):
        image = np.dstack([np.array(pixels, dtype=np.uint8)] * 3)
        assert transforms.resize_image(image, *size).tolist() == np.dstack([expected] * 3).tolist()
    mask = np.array([[0, 1, 2, 3, 4, 5]], dtype=np.uint8).repeat(6, axis=0)
    assert transforms.resize_target(mask, 6, 2)[0].tolist() == [1, 4]  # the centre of the pixel
    depth = np.array([[200, 0], [50, 60]], np.float32)
    assert set(transforms.resize_target(depth, 4, 4).ravel()) == {0.0, 50.0, 60.0, 200.0}
    image, mask = frame_that_shows_its_mask()
    assert transforms.resize_image(image, 2, 4) is image and transforms.resize_target(mask, 2, 4) is mask


def test_tensors_are_channels_first_and_share_no_memory():
    image, mask = frame_that_shows_its_mask()
    clip = transforms.to_tensors(np.stack([image, image + 1]), {})
    tensors = transforms.to_tensors(image[None], {"label": mask})
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
    images, targets = transforms.augment(clip, {"label": mask, "depth": depth}, augmentation)
    alone, label = moved(image, mask, augmentation)
    for number, frame in enumerate(images):
        np.testing.assert_array_equal(frame, alone + number)
    np.testing.assert_array_equal(targets["label"], label)
    np.testing.assert_array_equal(targets["depth"], (label + np.float32(0.25)) / 2)  # no depth is made up
    assert targets["depth"].dtype == np.float32


@pytest.mark.parametrize(("width", "expected"), [
    (4, [[200, 0, 30, 40], [50, 60, 70, 80]]),  # no zoom
    (8, [[100, 100, 0, 0], [100, 100, 0, 0]]),  # twice as large, half as far; 0 stays unknown
    (2, [[120, 160, 0, 0], [0, 0, 0, 0]]),  # half as large, twice as far; padding is unknown
])  # fmt: skip
def test_depth_is_divided_by_the_zoom(width, expected):
    """A crop of 2 x 4 pixels at the top left; each edge stays an edge."""
    depth = np.array([[200, 0, 30, 40], [50, 60, 70, 80]], np.float32)
    image = np.zeros((1, 2, 4, 3), np.uint8)
    targets = transforms.augment(image, {"depth": depth, "label": depth.astype(np.uint8)}, with_(width=width))[1]
    np.testing.assert_array_equal(targets["depth"], np.array(expected, np.float32))
    assert set(targets["label"].ravel()) <= {0, 200, 30, 40, 50, 60, 70, 80}


def test_a_turn_is_numpys_at_90_degrees_keeps_the_middle_and_makes_up_no_id():
    images = np.random.default_rng(0).integers(0, 255, (2, 9, 9, 3)).astype(np.uint8)
    label = np.random.default_rng(1).integers(0, 4, (9, 9)).astype(np.uint8)
    turned, targets = transforms.turn(images, {"label": label}, 90.0)
    assert np.array_equal(turned, np.rot90(images, axes=(1, 2)))
    assert np.array_equal(targets["label"], np.rot90(label))
    label = np.full((31, 41), 3, dtype=np.uint8)
    label[15, 20] = 1
    _, targets = transforms.turn(np.zeros((1, 31, 41, 3), np.uint8), {"label": label}, 30.0)
    assert targets["label"][15, 20] == 1 and targets["label"][0, 0] == 0
    assert set(np.unique(targets["label"])) == {0, 1, 3}


def test_turns_are_uniform_between_both_ends_and_no_turn_or_colours_draw_nothing():
    generator = torch.Generator().manual_seed(2)
    drawn = np.array([transforms.sample_turn(generator, 20.0) for _ in range(4000)])
    assert -20 <= drawn.min() < -19.9 and 19.9 < drawn.max() <= 20
    assert abs(drawn.mean()) < 0.6 and abs(drawn.std() - 20 / np.sqrt(3)) < 0.3
    generator = torch.Generator().manual_seed(1)
    before, images = generator.get_state(), frames()
    drawn = transforms.sample_colours(generator, 0.0)
    assert drawn == transforms.UNCHANGED and transforms.change_colours(images, drawn) is images
    assert transforms.turn(images, {}, transforms.sample_turn(generator, 0.0))[0] is images
    assert torch.equal(generator.get_state(), before)


# ---- forms of targets

TARGETS = {
    "label": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "triplets": np.eye(100, dtype=np.uint8)[7],
    "phase": np.array(3),
}


@pytest.mark.parametrize("T", [1, 2])
def test_augmentation_moves_only_maps(T):
    targets = {name: over_time([target] * T) for name, target in TARGETS.items()}
    images = np.zeros((T, 3, 4, 3), np.uint8)
    flipped = transforms.augment(images, targets, with_(flip_horizontal=True))[1]
    turned = transforms.turn(images, targets, 180.0)[1]
    np.testing.assert_array_equal(flipped["label"], targets["label"][..., ::-1])
    np.testing.assert_array_equal(turned["label"], targets["label"][..., ::-1, ::-1])
    for name in ("triplets", "phase"):
        assert flipped[name] is targets[name] and turned[name] is targets[name]
        np.testing.assert_array_equal(of_last_frame(name, targets[name]), TARGETS[name])
    assert transforms.to_tensors(images, targets)["phase"].shape == ((2,) if T == 2 else ())


@pytest.mark.parametrize(("name", "shape"), [("label", (100,)), ("triplets", ()), ("phase", (7,)), ("grade", (4, 4))])
def test_another_form_is_refused_and_a_vector_is_not_resized(name, shape):
    with pytest.raises(DataError, match=rf"a\.txt: gives '{name}' of shape .*, which is no {form_of(name)}: "):
        refuse_other_form(name, np.zeros(shape), Path("a.txt"))
    with pytest.raises(ValueError, match="target 'colour' has no form; add it to FORMS"):
        form_of("colour")
    with pytest.raises(ValueError, match=r"a target of shape \(100,\) is no map and has no size"):
        transforms.resize_target(TARGETS["triplets"], 32, 48)


# ---- colours


def frames(count: int = 1, height: int = 12, width: int = 16) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def of_colour(*rgb: int) -> np.ndarray:
    return np.full((1, 8, 8, 3), rgb, np.uint8)


def drawn_at(strength: float, count: int = 2000) -> list[transforms.Colours]:
    generator = torch.Generator().manual_seed(1)
    return [transforms.sample_colours(generator, strength) for _ in range(count)]


def test_equal_generators_draw_equal_changes_and_as_many_numbers_whatever_happens():
    first, second = drawn_at(1.0, 50), drawn_at(1.0, 50)
    weak, strong = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    transforms.sample_colours(weak, 0.1), transforms.sample_colours(strong, 1.0)
    assert first == second and len(set(first)) == 50
    assert torch.equal(weak.get_state(), strong.get_state())


@pytest.mark.parametrize("strength", [0.25, 1.0])
def test_what_is_drawn_lies_in_its_range_and_reaches_it(strength):
    drawn = drawn_at(strength)
    reached = {
        "blur": (0.0, 1.5 * strength), "hue": (-np.pi / 2 * strength, np.pi / 2 * strength),
        "gamma": (2**-strength, 2**strength), "contrast": (1 - 0.5 * strength, 1 + 0.5 * strength),
        "brightness": (-0.2 * strength, 0.2 * strength), "haze": (0.0, 0.5 * strength), "noise": (0.0, 12.0 * strength),
    }  # fmt: skip
    for name, (low, high) in reached.items():
        values = [getattr(one, name) for one in drawn]
        assert low <= min(values) and max(values) <= high, name
        assert max(values) > low + 0.95 * (high - low), name
    gains = np.array([one.gains for one in drawn])
    assert gains.min() >= 1.4**-strength and gains.max() <= 1.4**strength
    kept = [one.saturation for one in drawn if one.saturation > 0]
    assert 1 - strength <= min(kept) and max(kept) <= 1 + 0.6 * strength
    grey = sum(one.saturation == 0 for one in drawn)
    assert 0 < grey < 0.15 * strength * len(drawn)
    coded = [one.quality for one in drawn if one.quality]
    assert round(95 - 75 * strength) <= min(coded) and max(coded) <= 95
    assert 0.2 < len(coded) / len(drawn) < 0.4


@pytest.mark.parametrize("count", [1, 4])
def test_all_frames_of_a_clip_change_alike(count):
    still = np.repeat(frames(), count, axis=0)
    before = still.copy()
    for drawn in drawn_at(1.0, 30):
        changed = transforms.change_colours(still, drawn)
        assert changed.shape == still.shape and changed.dtype == np.uint8
        assert all(np.array_equal(frame, changed[0]) for frame in changed)
        assert np.array_equal(changed, transforms.change_colours(still, drawn))
    assert np.array_equal(still, before)


def test_points_of_a_table_by_hand():
    image = of_colour(51, 102, 204)  # 0.2, 0.4, 0.8
    worked = {
        transforms.Colours(gains=(2.0, 1.0, 0.5)): (102, 102, 102),
        transforms.Colours(gamma=2.0): (10, 41, 163),  # 255 times 0.04, 0.16, 0.64
        transforms.Colours(contrast=0.5): (89, 115, 166),  # 0.35, 0.45, 0.65
        transforms.Colours(brightness=0.1): (76, 128, 230),  # 76.5 and 127.5 and 229.5 to the even number
        transforms.Colours(veil=1.0, haze=0.5): (153, 178, 230),  # 0.6, 0.7, 0.9
    }
    for drawn, expected in worked.items():
        assert np.abs(transforms.change_colours(image, drawn)[0, 0, 0].astype(int) - expected).max() <= 1, drawn


def test_no_saturation_is_the_luma_and_a_turn_of_hues_changes_no_grey():
    image = frames()
    grey = transforms.change_colours(image, transforms.Colours(saturation=0.0))[0]
    expected = cv2.cvtColor(image[0], cv2.COLOR_RGB2GRAY)
    assert np.abs(grey.astype(int) - expected[..., None]).max() <= 1
    level = of_colour(120, 120, 120)
    assert np.array_equal(transforms.change_colours(level, transforms.Colours(hue=1.3, saturation=1.5)), level)
    turned = transforms.change_colours(of_colour(140, 100, 100), transforms.Colours(hue=2 * np.pi / 3))[0, 0, 0]
    hue, _, _ = colorsys.rgb_to_hsv(*(turned / 255.0))
    assert hue == pytest.approx(1 / 3, abs=0.02)
    luma = np.array([0.299, 0.587, 0.114])
    assert turned @ luma == pytest.approx(np.array([140, 100, 100]) @ luma, abs=1)


def test_noise_blur_and_compression_go_by_what_is_drawn():
    level = np.full((1, 96, 128, 3), 128, np.uint8)
    first, other = (transforms.change_colours(level, transforms.Colours(noise=9.0, grain=g)) for g in (0, 500_000))
    assert first.std() == pytest.approx(9.0, rel=0.05) and first.mean() == pytest.approx(128, abs=0.3)
    assert not np.array_equal(first, other)
    large = np.full((1, 800, 1000, 3), 128, np.uint8)  # 2.4 million numbers, more than the bank
    noisy = transforms.change_colours(large, transforms.Colours(noise=5.0, grain=7))
    assert noisy.std() == pytest.approx(5.0, rel=0.05)
    busy = frames(height=64, width=64)
    assert transforms.change_colours(busy, transforms.Colours(blur=1.5)).std() < 0.5 * busy.std()
    image = frames(height=64, width=64)
    near, far = (transforms.change_colours(image, transforms.Colours(quality=q)).astype(int) for q in (95, 20))
    assert 0 < np.abs(near - image).mean() < np.abs(far - image).mean()
    red = transforms.change_colours(of_colour(200, 30, 30), transforms.Colours(quality=90))[0, 0, 0]
    assert red[0] > 150 > 80 > red[2]
