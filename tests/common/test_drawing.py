"""Colours that people can tell apart, masks over frames with legends, and sheets whose record finds each panel."""

import json

import cv2
import numpy as np
import pytest

from shared_components.common.drawing.palette import CLASSES, DEPTH, ERROR, class_entries, colour, css
from shared_components.common.drawing.pictures import UNLABELLED, coloured, legend, overlay, scale_bar
from shared_components.common.drawing.sheets import Panel, Scale, Sheet
from shared_components.data.files.classes import IGNORED
from shared_components.scenes.looks import look_named

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


def test_every_id_has_a_colour_and_depth_grows_darker_from_near_to_far():
    assert colour(0) == (0, 0, 0)
    assert all(colour(i) != (0, 0, 0) for i in range(1, 256))
    assert len({colour(i) for i in range(1, 13)}) == 12 and colour(13) == colour(1)
    assert class_entries(("background", "a", "b")) == [("a", colour(1)), ("b", colour(2))]  # of a legend
    assert (css((0, 10, 255)), css(colour(1))) == ("#000aff", "#56b4e9")  # of a page
    grey = cv2.cvtColor(DEPTH[None], cv2.COLOR_RGB2GRAY)[0].astype(int)
    assert (np.diff(grey) <= 1).all() and grey[0] - grey[-1] > 150
    assert int(Scale((0.0, 1.0), ERROR).to_json()["colours"][0][1:3], 16) < 8


NAMES = ("background", "shaft", "wrist", "clasper")


def frame(height: int = 40, width: int = 60) -> np.ndarray:
    return np.full((height, width, 3), (160, 70, 60), np.uint8)


def test_classes_and_outlines_have_their_colour_over_a_frame_of_the_masks_size():
    image, mask = frame(), np.zeros((40, 60), np.uint8)
    mask[10:30, 10:50] = 3
    drawn = overlay(image, mask, contour=0)
    assert (drawn[mask == 0] == (160, 70, 60)).all() and (drawn[mask == 3] != (160, 70, 60)).any(axis=-1).all()
    assert (overlay(image, mask, alpha=1.0, contour=0)[mask == 3] == CLASSES[3]).all()
    assert tuple(overlay(image, mask, alpha=0.0)[10, 30]) == colour(3)
    assert (image == frame()).all() and set(np.unique(mask)) == {0, 3} and (mask == 3).sum() == 800
    with pytest.raises(ValueError, match=r"\(40, 60, 3\).*\(40, 61\)"):
        overlay(frame(), np.zeros((40, 61), np.uint8))


@pytest.mark.parametrize("width", [90, 400, 1920])
def test_a_legend_shows_every_class_at_any_width_and_no_other_colour(width):
    strip = legend(class_entries(NAMES), width=width)
    assert strip.shape[1:] == (width, 3)
    shown = {tuple(pixel) for pixel in strip.reshape(-1, 3).tolist()} & {colour(i) for i in range(1, len(CLASSES))}
    assert shown == {colour(1), colour(2), colour(3)}
    narrow, wide, large = (legend(class_entries(NAMES), width=w) for w in (100, 400, 2560))
    assert (narrow.shape[0], wide.shape[0], large.shape[0]) == (3 * 26, 26, 2 * 26)


def test_a_scale_and_values_run_from_its_first_colour_to_its_last_and_unknown_ones_are_hatched():
    bar = scale_bar((20.0, 100.0), DEPTH, 300)
    assert tuple(bar[10, 0]) == tuple(DEPTH[0]) and tuple(bar[10, -1]) == tuple(DEPTH[255])
    assert (bar[25:] < 100).any()  # numbers
    values = np.array([[20.0, 60.0, 100.0, 500.0, np.nan]])
    drawn = coloured(values, np.isfinite(values), (20.0, 100.0), DEPTH)
    assert [tuple(pixel) for pixel in drawn[0, :4]] == [tuple(DEPTH[i]) for i in (0, 128, 255, 255)]
    assert tuple(drawn[0, 4]) in {(70, 70, 70), (140, 140, 140)}
    assert UNLABELLED == IGNORED  # pixels that nobody labelled are those of the data


def plain(value: int) -> np.ndarray:
    return np.full((50, 80, 3), value, np.uint8)


def test_the_record_says_where_panels_lie_and_has_the_colours_of_their_scales():
    sheet = Sheet((Panel("frame", plain(10)), Panel("truth", plain(90), "empty")), (("shaft", (86, 180, 233)),))
    image, record = sheet.image(), json.loads(json.dumps(sheet.to_json()))
    assert image.shape == (26 + 50 + 26, 166, 3)
    for panel, value in zip(record["panels"], (10, 90), strict=True):
        x, y, width, height = panel["box"]
        assert (width, height) == (80, 50) and (image[y : y + height, x : x + width] == value).all()
    assert [panel["note"] for panel in record["panels"]] == ["", "empty"]
    assert record["legend"] == [{"name": "shaft", "colour": "#56b4e9"}] and record["hatched"] is False
    scale = Scale((10.0, 110.0), DEPTH)
    sheet = Sheet((Panel("frame", plain(0)), Panel("truth", plain(0), scale=scale)), hatched=True)
    assert sheet.image().shape == (26 + 50 + 44, 166, 3)
    first, second = sheet.to_json()["panels"]
    assert first["scale"] is None
    assert (second["scale"]["low"], second["scale"]["high"], second["scale"]["unit"]) == (10.0, 110.0, "mm")
    assert len(second["scale"]["colours"]) == 17
    ends = ["#{:02x}{:02x}{:02x}".format(*DEPTH[i]) for i in (0, 255)]
    assert [second["scale"]["colours"][0], second["scale"]["colours"][-1]] == ends
