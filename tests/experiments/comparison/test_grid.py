"""Frames by methods: every site's row, or the row of the site outside, and nothing without pictures."""

import base64

import numpy as np

from shared_components.common.drawing.pictures import encoded
from shared_components.experiments.comparison import grid as module
from shared_components.experiments.comparison.grid import HEIGHT, WIDTH, grid
from shared_components.experiments.comparison.pictures import OUTSIDE, Gallery, Picture, Row
from shared_components.experiments.comparison.presets import PRESETS
from tests.experiments.comparison.conftest import compared, result

BLUE, GREEN = (0, 0, 200), (0, 200, 0)


def picture(name, colour):
    data = encoded(np.full((64, WIDTH, 3), colour, np.uint8), ".png")
    return Picture(name, "data:image/png;base64," + base64.b64encode(data).decode())


def test_a_row_per_site_holds_frame_truth_and_answers(monkeypatch):
    rows = [Row("v, frame 1", [picture("frame", BLUE)], [picture("FedAvg", GREEN), Picture("Failed")])]
    places = [("a", rows), ("b", rows), (OUTSIDE, rows)]
    monkeypatch.setattr(module, "gallery", lambda *_: Gallery(None, (), (), 1, places, ()))
    drawn = grid(compared(result("FedAvg", 1, (0.5, 0.4))))
    assert drawn.shape[1] > 3 * WIDTH and drawn.shape[0] > 2 * HEIGHT and drawn.shape[0] < 3 * HEIGHT
    assert [int((drawn == colour).all(2).sum()) for colour in (BLUE, GREEN)] == [2 * 64 * WIDTH] * 2


def test_the_site_outside_has_a_picture_of_its_own(monkeypatch):
    places = [(site, [Row("v", [picture("frame", colour)], [])]) for site, colour in (("a", BLUE), (OUTSIDE, GREEN))]
    monkeypatch.setattr(module, "gallery", lambda *_: Gallery(None, (), (), 1, places, ()))
    inside, outside = (
        grid(compared(result("FedAvg", 1, (0.5, 0.4)), layout=PRESETS[name].layout))
        for name in ("fedst-figure3", "fedst-figure4")
    )
    for drawn, expected in ((inside, (64 * WIDTH, 0)), (outside, (0, 64 * WIDTH))):
        assert tuple(int((drawn == colour).all(2).sum()) for colour in (BLUE, GREEN)) == expected


def test_without_pictures_there_is_none():
    assert grid(compared(result("FedAvg", 1, (0.5, 0.4)))) is None
