"""Panels side by side, and the record by which a page finds each of them."""

import json

import numpy as np

from shared_components.common.drawing.palette import DEPTH, ERROR
from shared_components.common.drawing.sheets import Panel, Scale, Sheet


def plain(value: int) -> np.ndarray:
    return np.full((50, 80, 3), value, np.uint8)


def test_the_record_says_where_every_panel_lies() -> None:
    sheet = Sheet((Panel("frame", plain(10)), Panel("truth", plain(90), "empty")), (("shaft", (86, 180, 233)),))
    image, record = sheet.image(), json.loads(json.dumps(sheet.to_json()))
    assert image.shape == (26 + 50 + 26, 166, 3)
    for panel, value in zip(record["panels"], (10, 90), strict=True):
        x, y, width, height = panel["box"]
        assert (width, height) == (80, 50) and (image[y : y + height, x : x + width] == value).all()
    assert [panel["note"] for panel in record["panels"]] == ["", "empty"]
    assert record["legend"] == [{"name": "shaft", "colour": "#56b4e9"}] and record["hatched"] is False


def test_a_scale_is_drawn_below_its_panel_and_recorded_with_its_colours() -> None:
    scale = Scale((10.0, 110.0), DEPTH)
    sheet = Sheet((Panel("frame", plain(0)), Panel("truth", plain(0), scale=scale)), hatched=True)
    assert sheet.image().shape == (26 + 50 + 44, 166, 3)
    first, second = sheet.to_json()["panels"]
    assert first["scale"] is None
    assert (second["scale"]["low"], second["scale"]["high"], second["scale"]["unit"]) == (10.0, 110.0, "mm")
    assert len(second["scale"]["colours"]) == 17
    ends = ["#{:02x}{:02x}{:02x}".format(*DEPTH[i]) for i in (0, 255)]
    assert [second["scale"]["colours"][0], second["scale"]["colours"][-1]] == ends


def test_the_scale_of_errors_begins_black() -> None:
    assert int(Scale((0.0, 1.0), ERROR).to_json()["colours"][0][1:3], 16) < 8
