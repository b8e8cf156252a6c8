"""Frames beside truth, prediction and errors."""

import subprocess
import sys

import numpy as np
import pytest

from shared_components.drawing.palette import CONFUSED, EXTRA, MISSED
from shared_components.drawing.pictures import overlay
from shared_components.reporting.overlays import depth_picture, errors, reconstruction_picture, triptych

CLASSES = ("background", "shaft", "wrist", "clasper")


def frame(height: int = 40, width: int = 60) -> np.ndarray:
    return np.full((height, width, 3), (160, 70, 60), np.uint8)


def test_error_map_names_missed_extra_and_confused_pixels() -> None:
    truth = np.array([[1, 0, 1, 1, 0]], np.uint8)
    prediction = np.array([[0, 1, 2, 1, 0]], np.uint8)
    drawn = errors(frame(1, 5), truth, prediction)
    assert [tuple(pixel) for pixel in drawn[0, :3]] == [MISSED, EXTRA, CONFUSED]
    assert (drawn[0, 3:] == drawn[0, 3, 0]).all()


@pytest.mark.parametrize("size", [(8, 8), (64, 80), (1024, 1280)])
def test_triptych_has_three_panels_of_one_width_for_any_frame(size: tuple[int, int]) -> None:
    mask = np.ones(size, np.uint8)
    drawn = triptych(frame(*size), mask, mask, CLASSES)
    assert drawn.dtype == np.uint8
    assert drawn.shape == (round(400 * size[0] / size[1]) + 52, 3 * 400 + 2 * 6, 3)


def test_triptych_draws_truth_in_the_middle_and_prediction_on_the_right() -> None:
    empty, full = np.zeros((40, 60), np.uint8), np.ones((40, 60), np.uint8)
    drawn = triptych(frame(), empty, full, CLASSES)
    left, middle, right = (drawn[100, x] for x in (200, 606, 1012))
    assert (left == middle).all() and (right != left).any()


def test_a_legend_too_long_for_a_line_wraps() -> None:
    mask = np.zeros((40, 60), np.uint8)
    short = triptych(frame(), mask, mask, CLASSES, panel_width=80)
    many = triptych(frame(), mask, mask, [f"a rather long class name {i}" for i in range(9)], panel_width=80)
    assert many.shape[0] > short.shape[0]


def test_error_map_adds_a_fourth_panel() -> None:
    mask = np.zeros((40, 60), np.uint8)
    assert triptych(frame(), mask, mask, CLASSES, error_map=True).shape[1] == 4 * 400 + 3 * 6


def panels(picture: np.ndarray, width: int = 100) -> list[np.ndarray]:
    """Cut a picture of square panels into them, below their captions."""
    return [
        picture[26 : 26 + width, i * (width + 6) :][:, :width] for i in range((picture.shape[1] + 6) // 106)
    ]


def ramp(size: int = 100) -> np.ndarray:
    """Give depths from 20 mm at the left to 119 mm at the right."""
    return np.tile(np.arange(20, 20 + size, dtype=np.float32), (size, 1))


def lightness(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(float) @ (0.299, 0.587, 0.114)


def test_a_depth_picture_has_four_panels_and_scales_for_any_frame() -> None:
    for size in ((100, 100), (64, 80), (1024, 1280)):
        depth = np.full(size, 50, np.float32)
        drawn = depth_picture(frame(*size), depth, depth)
        assert drawn.dtype == np.uint8
        assert drawn.shape == (round(304 * size[0] / size[1]) + 26 + 44, 4 * 304 + 3 * 6, 3)


def test_near_is_brighter_than_far_in_every_step() -> None:
    truth = panels(depth_picture(frame(100, 100), ramp(), ramp(), panel_width=100))[1]
    steps = np.diff(lightness(truth[50, 2:-2]))
    assert (steps <= 0.5).all() and lightness(truth[50, 5]) - lightness(truth[50, 95]) > 100


def test_truth_and_prediction_share_one_scale() -> None:
    """A prediction 20 mm too far has at each place the colour that truth has 20 mm further on."""
    drawn = panels(depth_picture(frame(100, 100), ramp(), ramp() + 20, panel_width=100))
    np.testing.assert_array_equal(drawn[2][50, 5:75], drawn[1][50, 25:95])
    assert (drawn[3][50, 0] == drawn[3][50, -1]).all()  # and the error is one colour


def test_unknown_depth_is_hatched_grey_and_not_compared() -> None:
    truth, prediction = ramp(), ramp() + 1
    truth[:, :50], truth[0, 60], prediction[0, 70] = 0, np.nan, np.inf
    prediction[:, :50] = 5000  # an error, were it compared
    drawn = panels(depth_picture(frame(100, 100), truth, prediction, panel_width=100))
    for panel in (drawn[1], drawn[3]):
        hidden = panel[:, :50].reshape(-1, 3)
        assert {tuple(pixel) for pixel in hidden.tolist()} == {(70, 70, 70), (140, 140, 140)}
        assert panel[0, 60, 0] == panel[0, 60, 1] == panel[0, 60, 2]
    assert len(np.unique(drawn[3][50, 50:], axis=0)) == 1


def test_a_picture_without_any_known_depth_or_of_one_depth_is_drawn() -> None:
    nothing, flat = np.zeros((40, 60), np.float32), np.full((40, 60), 30, np.float32)
    for truth in (nothing, flat):
        for prediction in (nothing, flat, np.full((40, 60), np.nan, np.float32)):
            assert depth_picture(frame(), truth, prediction).shape[1] == 4 * 304 + 18


def test_a_wild_prediction_does_not_flatten_the_truth() -> None:
    drawn = panels(depth_picture(frame(100, 100), ramp(), ramp() * 1e4, panel_width=100))
    assert lightness(drawn[1][50, 5]) - lightness(drawn[1][50, 95]) > 50


def test_depth_of_another_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"prediction of shape \(40, 61\)"):
        depth_picture(frame(), np.ones((40, 60), np.float32), np.ones((40, 61), np.float32))


def test_a_reconstruction_is_frame_masked_and_restored() -> None:
    parts = [np.full((100, 100, 3), value, np.uint8) for value in (10, 128, 200)]
    drawn = reconstruction_picture(*parts, panel_width=100)
    assert drawn.shape == (126, 312, 3)
    assert [int(panel[50, 50, 0]) for panel in panels(drawn)] == [10, 128, 200]
    with pytest.raises(ValueError, match="restored of shape"):
        reconstruction_picture(parts[0], parts[1], parts[2][:50])


def test_importing_overlays_needs_no_other_library() -> None:
    code = (
        "import sys, shared_components.reporting.overlays;"
        "heavy = {'torch', 'monai', 'jinja2', 'matplotlib', 'PIL', 'scipy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_nobody_labelled_is_neither_tinted_nor_wrong():
    image = np.full((20, 20, 3), 100, np.uint8)
    truth = np.full((20, 20), 255, np.uint8)
    assert (overlay(image, truth) == image).all()
    assert (errors(image, truth, np.ones((20, 20), np.uint8)) == 50).all()
