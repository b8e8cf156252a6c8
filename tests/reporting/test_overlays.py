"""Masks over frames: colours where classes are, the frame unchanged elsewhere."""

import subprocess
import sys

import numpy as np
import pytest

from shared_components.reporting.overlays import (
    CONFUSED,
    EXTRA,
    MISSED,
    PALETTE,
    colour,
    errors,
    overlay,
    triptych,
)

CLASSES = ("background", "shaft", "wrist", "clasper")


def frame(height: int = 40, width: int = 60) -> np.ndarray:
    return np.full((height, width, 3), (160, 70, 60), np.uint8)


def test_background_pixels_keep_the_frame() -> None:
    mask = np.zeros((40, 60), np.uint8)
    mask[10:20, 10:20] = 1
    drawn = overlay(frame(), mask, contour=0)
    assert (drawn[mask == 0] == (160, 70, 60)).all()
    assert (drawn[mask == 1] != (160, 70, 60)).any(axis=-1).all()


def test_an_opaque_overlay_shows_the_palette() -> None:
    mask = np.full((40, 60), 2, np.uint8)
    assert (overlay(frame(), mask, alpha=1.0, contour=0) == PALETTE[2]).all()


def test_outlines_have_the_class_colour() -> None:
    mask = np.zeros((40, 60), np.uint8)
    mask[10:30, 10:50] = 3
    assert tuple(overlay(frame(), mask, alpha=0.0)[10, 30]) == colour(3)


def test_overlay_leaves_its_inputs_alone() -> None:
    image, mask = frame(), np.ones((40, 60), np.uint8)
    overlay(image, mask)
    assert (image == frame()).all() and (mask == 1).all()


def test_every_id_has_a_colour_and_only_background_has_none() -> None:
    assert colour(0) == (0, 0, 0)
    assert all(colour(i) != (0, 0, 0) for i in range(1, 256))
    assert len({colour(i) for i in range(1, 9)}) == 8


def test_a_mask_of_another_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"\(40, 60, 3\).*\(40, 61\)"):
        overlay(frame(), np.zeros((40, 61), np.uint8))


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


def test_importing_overlays_needs_no_other_library() -> None:
    code = (
        "import sys, shared_components.reporting.overlays;"
        "heavy = {'torch', 'monai', 'jinja2', 'matplotlib', 'PIL', 'scipy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
