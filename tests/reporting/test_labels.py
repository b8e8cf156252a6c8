"""Pictures of labels: colours mean what they say, and strips of frames of a size are equally high."""

import numpy as np

from shared_components.common.drawing.palette import MISSED, colour
from shared_components.reporting.labels import GREY, RIGHT, confusion_table, ribbon, several_sheet, strip, timeline

NAMES = ("a/b/c", "d_e", "f")


def has(picture, rgb):
    return bool((picture == np.array(rgb)).all(2).any())


def test_a_ribbon_has_the_frames_colours_in_order_and_a_timeline_marks_only_errors():
    drawn = ribbon(np.array([0, 2]), width=10)
    assert drawn.shape == (26, 10, 3)
    assert (drawn[:, :5] == colour(1)).all() and (drawn[:, 5:] == colour(3)).all()
    truth = np.array([0, 1, 2])
    courses = (timeline(truth, prediction, NAMES) for prediction in (truth, np.array([0, 2, 2])))
    rows = [(course == np.array(MISSED)).all(2).any(1) for course in courses]
    assert rows[1].sum() > rows[0].sum()  # the legend alone in the first


def test_strips_have_the_same_height_for_any_number_of_rows():
    for width in (64, 400, 1280):
        few, many = (strip([("text", 0.5, RIGHT)] * count, width=width, lines=3) for count in (0, 9))
        assert few.shape == many.shape and few.shape[1] == width


def test_a_sheet_says_what_is_there_missed_and_not_there():
    image = np.zeros((40, 60, 3), np.uint8)
    sheet = several_sheet(image, np.array([1, 1, 0], bool), np.array([0.9, 0.2, 0.6]), NAMES, shown=3)
    truth, prediction = (panel.image for panel in sheet.panels)
    assert has(truth, RIGHT) and has(truth, MISSED) and not has(truth, GREY)
    assert has(prediction, RIGHT) and has(prediction, GREY)


def test_a_table_of_confusions_is_blue_where_right_and_orange_where_wrong():
    right, wrong = confusion_table(np.diag([3, 2, 1]), NAMES), confusion_table(np.array([[0, 3, 0]] * 3), NAMES)
    assert has(right, RIGHT) and not has(right, MISSED) and has(wrong, MISSED)
