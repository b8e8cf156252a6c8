"""Changed colours: drawn first, applied afterwards, nothing at strength 0."""

import colorsys

import cv2
import numpy as np
import pytest
import torch

from shared_components.data.transforms import UNCHANGED, Colours, change_colours, sample_colours


def frames(count: int = 1, height: int = 12, width: int = 16) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def of_colour(*rgb: int) -> np.ndarray:
    return np.full((1, 8, 8, 3), rgb, np.uint8)


def drawn_at(strength: float, count: int = 2000) -> list[Colours]:
    generator = torch.Generator().manual_seed(1)
    return [sample_colours(generator, strength) for _ in range(count)]


def test_strength_0_is_identity_and_draws_nothing():
    generator = torch.Generator().manual_seed(0)
    before, images = generator.get_state(), frames()
    drawn = sample_colours(generator, 0.0)
    assert drawn == UNCHANGED and torch.equal(generator.get_state(), before)
    assert change_colours(images, drawn) is images


def test_equal_generators_draw_equal_changes_and_as_many_numbers_whatever_happens():
    first, second = drawn_at(1.0, 50), drawn_at(1.0, 50)
    weak, strong = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    sample_colours(weak, 0.1), sample_colours(strong, 1.0)
    assert first == second and len(set(first)) == 50
    assert torch.equal(weak.get_state(), strong.get_state())


@pytest.mark.parametrize("strength", [0.25, 1.0])
def test_what_is_drawn_lies_in_its_range_and_reaches_it(strength):
    drawn = drawn_at(strength)
    reached = {
        "blur": (0.0, 1.5 * strength),
        "hue": (-np.pi / 2 * strength, np.pi / 2 * strength),
        "gamma": (2**-strength, 2**strength),
        "contrast": (1 - 0.5 * strength, 1 + 0.5 * strength),
        "brightness": (-0.2 * strength, 0.2 * strength),
        "haze": (0.0, 0.5 * strength),
        "noise": (0.0, 12.0 * strength),
    }
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
        changed = change_colours(still, drawn)
        assert changed.shape == still.shape and changed.dtype == np.uint8
        assert all(np.array_equal(frame, changed[0]) for frame in changed)
        assert np.array_equal(changed, change_colours(still, drawn))
    assert np.array_equal(still, before)


def test_points_of_a_table_by_hand():
    image = of_colour(51, 102, 204)  # 0.2, 0.4, 0.8
    worked = {
        Colours(gains=(2.0, 1.0, 0.5)): (102, 102, 102),
        Colours(gamma=2.0): (10, 41, 163),  # 255 times 0.04, 0.16, 0.64
        Colours(contrast=0.5): (89, 115, 166),  # 0.35, 0.45, 0.65
        Colours(brightness=0.1): (76, 128, 230),  # 76.5 and 127.5 and 229.5 to the even number
        Colours(veil=1.0, haze=0.5): (153, 178, 230),  # 0.6, 0.7, 0.9
    }
    for drawn, expected in worked.items():
        assert np.abs(change_colours(image, drawn)[0, 0, 0].astype(int) - expected).max() <= 1, drawn


def test_no_saturation_is_the_luma_and_grey_stays_grey_whatever_the_turn():
    image = frames()
    grey = change_colours(image, Colours(saturation=0.0))[0]
    expected = cv2.cvtColor(image[0], cv2.COLOR_RGB2GRAY)
    assert np.abs(grey.astype(int) - expected[..., None]).max() <= 1
    level = of_colour(120, 120, 120)
    assert np.array_equal(change_colours(level, Colours(hue=1.3, saturation=1.5)), level)


def test_a_third_of_a_turn_leads_from_red_to_green():
    turned = change_colours(of_colour(140, 100, 100), Colours(hue=2 * np.pi / 3))[0, 0, 0]
    hue, _, _ = colorsys.rgb_to_hsv(*(turned / 255.0))
    assert hue == pytest.approx(1 / 3, abs=0.02)
    luma = np.array([0.299, 0.587, 0.114])
    assert turned @ luma == pytest.approx(np.array([140, 100, 100]) @ luma, abs=1)


def test_noise_has_the_deviation_drawn_and_blur_takes_deviation_away():
    level = np.full((1, 96, 128, 3), 128, np.uint8)
    one, other = (change_colours(level, Colours(noise=9.0, grain=g)).astype(float) for g in (0, 500_000))
    assert one.std() == pytest.approx(9.0, rel=0.05) and one.mean() == pytest.approx(128, abs=0.3)
    assert not np.array_equal(one, other)
    busy = frames(height=64, width=64)
    assert change_colours(busy, Colours(blur=1.5)).std() < 0.5 * busy.std()


def test_noise_covers_frames_larger_than_its_bank():
    level = np.full((1, 800, 1000, 3), 128, np.uint8)  # 2.4 million numbers
    assert change_colours(level, Colours(noise=5.0, grain=7)).std() == pytest.approx(5.0, rel=0.05)


def test_compression_goes_by_the_drawn_quality_and_keeps_the_channels_order():
    image = frames(height=64, width=64)
    near, far = (change_colours(image, Colours(quality=q)).astype(int) for q in (95, 20))
    assert 0 < np.abs(near - image).mean() < np.abs(far - image).mean()
    red = change_colours(of_colour(200, 30, 30), Colours(quality=90))[0, 0, 0]
    assert red[0] > 150 > 80 > red[2]
