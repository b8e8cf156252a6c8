"""Masks over frames: colours where classes are, the frame unchanged elsewhere; legends that name them."""

import numpy as np
import pytest

from shared_components.common.drawing.palette import CLASSES, DEPTH, class_entries, colour
from shared_components.common.drawing.pictures import UNLABELLED, coloured, legend, overlay, scale_bar
from shared_components.data.classes import IGNORED

NAMES = ("background", "shaft", "wrist", "clasper")


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
    assert (overlay(frame(), mask, alpha=1.0, contour=0) == CLASSES[2]).all()


def test_outlines_have_the_class_colour() -> None:
    mask = np.zeros((40, 60), np.uint8)
    mask[10:30, 10:50] = 3
    assert tuple(overlay(frame(), mask, alpha=0.0)[10, 30]) == colour(3)


def test_overlay_leaves_its_inputs_alone() -> None:
    image, mask = frame(), np.ones((40, 60), np.uint8)
    overlay(image, mask)
    assert (image == frame()).all() and (mask == 1).all()


def test_a_mask_of_another_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"\(40, 60, 3\).*\(40, 61\)"):
        overlay(frame(), np.zeros((40, 61), np.uint8))


def colours_in(strip: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(pixel) for pixel in strip.reshape(-1, 3).tolist()}


@pytest.mark.parametrize("width", [90, 400, 1920])
def test_a_legend_shows_every_class_at_any_width_and_no_other_colour(width: int) -> None:
    strip = legend(class_entries(NAMES), width=width)
    assert strip.shape[1:] == (width, 3)
    shown = colours_in(strip) & {colour(i) for i in range(1, len(CLASSES))}
    assert shown == {colour(1), colour(2), colour(3)}


def test_a_legend_breaks_into_lines_where_it_is_too_long_and_grows_with_large_pictures() -> None:
    narrow, wide, large = (legend(class_entries(NAMES), width=w) for w in (100, 400, 2560))
    assert (narrow.shape[0], wide.shape[0], large.shape[0]) == (3 * 26, 26, 2 * 26)


def test_a_scale_runs_from_its_first_colour_to_its_last() -> None:
    bar = scale_bar((20.0, 100.0), DEPTH, 300)
    assert tuple(bar[10, 0]) == tuple(DEPTH[0]) and tuple(bar[10, -1]) == tuple(DEPTH[255])
    assert (bar[25:] < 100).any()  # numbers


def test_values_take_the_colour_of_their_share_and_what_is_unknown_is_hatched() -> None:
    values = np.array([[20.0, 60.0, 100.0, 500.0, np.nan]])
    drawn = coloured(values, np.isfinite(values), (20.0, 100.0), DEPTH)
    assert [tuple(pixel) for pixel in drawn[0, :4]] == [tuple(DEPTH[i]) for i in (0, 128, 255, 255)]
    assert tuple(drawn[0, 4]) in {(70, 70, 70), (140, 140, 140)}


def test_pixels_that_nobody_labelled_are_those_of_the_data():
    assert UNLABELLED == IGNORED
