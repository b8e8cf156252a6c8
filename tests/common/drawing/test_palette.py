"""Colours that people can tell apart, with every kind of colour vision, from each other and from tissue."""

import cv2
import numpy as np
import pytest

from shared_components.common.drawing.palette import CLASSES, DEPTH, class_entries, colour, css
from shared_components.data.synthetic.looks import look_named

# Machado, Oliveira and Fernandes, IEEE TVCG 2009, Table 1: severity 1, applied to linear RGB.
SEEN = {
    "usual": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def seen(colours: np.ndarray, vision: str) -> np.ndarray:
    """Give sRGB (N, 3) in CIELAB as a kind of vision sees it; OpenCV's conversion."""
    share = colours.astype(np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    mixed = np.clip(linear @ np.array(SEEN[vision]).T, 0, 1).astype(np.float32)
    return cv2.cvtColor(mixed[None], cv2.COLOR_LRGB2Lab)[0]


def nearest(first: np.ndarray, second: np.ndarray) -> float:
    """Give the least distance that is not of a colour to itself."""
    away = np.linalg.norm(first[:, None] - second[None], axis=-1)
    return float(away[away > 0].min())


def test_the_conversion_is_that_of_cielab() -> None:
    white, red = seen(np.array([[255, 255, 255], [255, 0, 0]]), "usual")
    np.testing.assert_allclose(white, (100, 0, 0), atol=0.1)
    np.testing.assert_allclose(red, (53.24, 80.09, 67.20), atol=0.2)  # Lindbloom's tables, D65


@pytest.mark.parametrize("vision", SEEN)
@pytest.mark.parametrize(("count", "apart"), [(3, 45), (6, 24), (12, 11)])
def test_classes_are_told_apart_with_any_colour_vision(vision: str, count: int, apart: float) -> None:
    first = seen(CLASSES[1 : count + 1], vision)
    assert nearest(first, first) > apart


@pytest.mark.parametrize("vision", ["usual", "protan", "deutan"])
def test_classes_stand_out_against_red_pink_and_yellow_tissue(vision: str) -> None:
    looks = [look_named(name) for name in ("rose", "amber", "crimson")]
    reds = [colour for look in looks for colour, _ in look.organs if colour[1] < 180]
    assert len(reds) > 6
    assert nearest(seen(CLASSES[1:], vision), seen(np.array(reds), vision)) > 17


def test_every_id_has_a_colour_and_only_background_has_none() -> None:
    assert colour(0) == (0, 0, 0)
    assert all(colour(i) != (0, 0, 0) for i in range(1, 256))
    assert len({colour(i) for i in range(1, 13)}) == 12 and colour(13) == colour(1)


def test_a_legend_leaves_the_background_out_and_keeps_the_ids() -> None:
    assert class_entries(("background", "a", "b")) == [("a", colour(1)), ("b", colour(2))]


def test_pages_get_the_same_colours() -> None:
    assert (css((0, 10, 255)), css(colour(1))) == ("#000aff", "#56b4e9")


def test_depth_grows_darker_from_near_to_far_and_grey_keeps_the_order() -> None:
    grey = cv2.cvtColor(DEPTH[None], cv2.COLOR_RGB2GRAY)[0].astype(int)
    assert (np.diff(grey) <= 1).all() and grey[0] - grey[-1] > 150
