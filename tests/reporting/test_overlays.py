"""Frames beside truth, prediction and errors."""

import subprocess
import sys

import numpy as np
import pytest

from shared_components.common.drawing.palette import CONFUSED, EXTRA, MISSED
from shared_components.common.drawing.pictures import overlay
from shared_components.reporting.overlays import depth_sheet, errors, reconstruction_sheet, segmentation_sheet

CLASSES = ("background", "shaft", "wrist", "clasper")
LEGEND = round(26 * (4 * 400 + 3 * 6) / 1280)  # letters grow with the picture


def frame(height=40, width=60):
    return np.full((height, width, 3), (160, 70, 60), np.uint8)


def test_error_map_names_missed_extra_and_confused_pixels():
    truth, prediction = np.array([[1, 0, 1, 1, 0]], np.uint8), np.array([[0, 1, 2, 1, 0]], np.uint8)
    drawn = errors(frame(1, 5), truth, prediction)
    assert [tuple(pixel) for pixel in drawn[0, :3]] == [MISSED, EXTRA, CONFUSED]
    assert (drawn[0, 3:] == drawn[0, 3, 0]).all()


@pytest.mark.parametrize("size", [(8, 8), (64, 80), (1024, 1280)])
def test_a_segmentation_has_four_panels_of_one_width_for_any_frame(size):
    mask = np.ones(size, np.uint8)
    sheet = segmentation_sheet(frame(*size), mask, mask, CLASSES)
    assert [panel.name for panel in sheet.panels] == ["frame", "truth", "prediction", "errors"]
    drawn, height = sheet.image(), round(400 * size[0] / size[1]) + 26 + LEGEND
    assert drawn.dtype == np.uint8 and drawn.shape[:2] == (height, 4 * 400 + 3 * 6)


def test_panels_are_the_frame_both_masks_and_what_differs():
    truth, prediction = np.zeros((40, 60), np.uint8), np.zeros((40, 60), np.uint8)
    truth[:10], prediction[5:15] = 1, 1
    image, true, predicted, wrong = panels(segmentation_sheet(frame(), truth, prediction, CLASSES, panel_width=60))
    assert (image == frame()).all()
    assert (true[2] != image[2]).any() and (true[20:] == image[20:]).all()
    assert (predicted[20:] == image[20:]).all() and (predicted[2, 30] == image[2, 30]).all()
    assert (wrong[2] == MISSED).all() and (wrong[12] == EXTRA).all() and (wrong[30, :, :] == wrong[30, 0, 0]).all()


def test_a_segmentation_says_what_it_shows():
    empty, full = np.zeros((40, 60), np.uint8), np.ones((40, 60), np.uint8)
    full[:10] = 0
    sheet = segmentation_sheet(frame(), empty, full, CLASSES)
    assert [panel.note for panel in sheet.panels] == ["", "no instrument", "", "75.0 % of the pixels"]
    assert [name for name, _ in sheet.legend] == ["shaft", "wrist", "clasper"]
    assert dict(sheet.panels[3].legend) == {"missed": MISSED, "false": EXTRA, "wrong class": CONFUSED}


def test_what_is_not_labelled_is_hatched_and_not_compared():
    truth, prediction = np.zeros((40, 60), np.uint8), np.ones((40, 60), np.uint8)
    truth[:, 30:] = 255
    sheet = segmentation_sheet(frame(), truth, prediction, CLASSES, panel_width=60)
    _, true, _, wrong = panels(sheet)
    for panel in (true, wrong):
        assert {tuple(p) for p in panel[:, 30:].reshape(-1, 3).tolist()} == {(70,) * 3, (140,) * 3}
    assert (true[:, :30] == frame()[:, :30]).all() and (wrong[:, :30] == EXTRA).all()
    assert sheet.panels[3].note == "100.0 % of the pixels" and sheet.hatched
    assert not segmentation_sheet(frame(), prediction, prediction, CLASSES).hatched
    unknown, grey = np.full((40, 60), 255, np.uint8), np.full((40, 60, 3), 100, np.uint8)
    assert segmentation_sheet(frame(), unknown, prediction, CLASSES).panels[3].note == ""
    assert (overlay(grey, unknown) == grey).all() and (errors(grey, unknown, prediction) == 50).all()


def panels(sheet):
    """Cut the image of a sheet into panels, where its record says that they are."""
    image = sheet.image()
    boxes = [panel["box"] for panel in sheet.to_json()["panels"]]
    return [image[y : y + height, x : x + width] for x, y, width, height in boxes]


def ramp(size=100):
    """Give depths from 20 mm at the left to 119 mm at the right."""
    return np.tile(np.arange(20, 20 + size, dtype=np.float32), (size, 1))


def lightness(pixels):
    return pixels.astype(float) @ (0.299, 0.587, 0.114)


def test_a_depth_picture_has_four_panels_for_any_frame_and_depth_and_refuses_another_size():
    for size in ((100, 100), (64, 80), (1024, 1280)):
        depth = np.full(size, 50, np.float32)
        drawn = depth_sheet(frame(*size), depth, depth).image()
        assert drawn.dtype == np.uint8
        assert drawn.shape == (round(304 * size[0] / size[1]) + 26 + 44, 4 * 304 + 3 * 6, 3)
    nothing, flat = np.zeros((40, 60), np.float32), np.full((40, 60), 30, np.float32)
    for truth in (nothing, flat):
        for prediction in (nothing, flat, np.full((40, 60), np.nan, np.float32)):
            assert depth_sheet(frame(), truth, prediction).image().shape[1] == 4 * 304 + 18
    with pytest.raises(ValueError, match=r"prediction of shape \(40, 61\)"):
        depth_sheet(frame(), np.ones((40, 60), np.float32), np.ones((40, 61), np.float32))


def test_near_is_brighter_than_far_in_every_step_and_a_wild_prediction_does_not_flatten_it():
    truth = panels(depth_sheet(frame(100, 100), ramp(), ramp(), panel_width=100))[1]
    steps = np.diff(lightness(truth[50, 2:-2]))
    assert (steps <= 0.5).all() and lightness(truth[50, 5]) - lightness(truth[50, 95]) > 100
    wild = panels(depth_sheet(frame(100, 100), ramp(), ramp() * 1e4, panel_width=100))[1]
    assert lightness(wild[50, 5]) - lightness(wild[50, 95]) > 50


def test_truth_and_prediction_share_one_scale():
    """A prediction 20 mm too far has at each place the colour that truth has 20 mm further on."""
    drawn = panels(depth_sheet(frame(100, 100), ramp(), ramp() + 20, panel_width=100))
    np.testing.assert_array_equal(drawn[2][50, 5:75], drawn[1][50, 25:95])
    assert (drawn[3][50, 0] == drawn[3][50, -1]).all()  # and the error is one colour


def test_unknown_depth_is_hatched_grey_and_not_compared():
    truth, prediction = ramp(), ramp() + 1
    truth[:, :50], truth[0, 60], prediction[0, 70] = 0, np.nan, np.inf
    prediction[:, :50] = 5000  # an error, were it compared
    drawn = panels(depth_sheet(frame(100, 100), truth, prediction, panel_width=100))
    for panel in (drawn[1], drawn[3]):
        assert {tuple(pixel) for pixel in panel[:, :50].reshape(-1, 3).tolist()} == {(70,) * 3, (140,) * 3}
        assert panel[0, 60, 0] == panel[0, 60, 1] == panel[0, 60, 2]
    assert len(np.unique(drawn[3][50, 50:], axis=0)) == 1


def test_a_reconstruction_is_frame_masked_and_restored():
    parts = [np.full((100, 100, 3), value, np.uint8) for value in (10, 128, 200)]
    drawn = reconstruction_sheet(*parts, panel_width=100)
    assert drawn.image().shape == (126, 312, 3)
    assert [int(panel[50, 50, 0]) for panel in panels(drawn)] == [10, 128, 200]
    with pytest.raises(ValueError, match="restored of shape"):
        reconstruction_sheet(parts[0], parts[1], parts[2][:50])


def test_importing_overlays_needs_no_other_library():
    code = (
        "import sys, shared_components.reporting.overlays;"
        "heavy = {'torch', 'monai', 'jinja2', 'matplotlib', 'PIL', 'scipy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
