"""A finer class map is read as a coarser one."""

import cv2
import numpy as np
import pytest

from shared_components.data.files import classes
from shared_components.data.files.classes import CLASS_MAPS, IGNORED, MERGES, SUCTION, coarser_ids, merge_classes
from shared_components.data.readers import find_reader

PARTS, MANIPULATOR = CLASS_MAPS["parts"], CLASS_MAPS["shaft_manipulator"]


def test_parts_become_the_manipulator_and_own_classes_are_read_only_as_themselves():
    mask = np.array([[0, 1, 2, 3, IGNORED]], dtype=np.uint8)
    assert merge_classes(mask, PARTS, MANIPULATOR).tolist() == [[0, 1, 2, 2, IGNORED]]
    assert merge_classes(mask, PARTS, PARTS) is mask
    with pytest.raises(ValueError, match="shaft_manipulator cannot be read as parts"):
        merge_classes(mask, MANIPULATOR, PARTS)
    own = ("background", "grasper", "suction")
    assert classes.readable_as(own) == [own]
    assert classes.name_of(own) == "grasper, suction" and classes.name_of(PARTS) == "parts"
    with pytest.raises(ValueError, match="grasper, suction cannot be read as foreground"):
        merge_classes(np.zeros((1, 1), dtype=np.uint8), own, CLASS_MAPS["foreground"])


@pytest.mark.parametrize(("source", "target"), list(MERGES))
def test_every_merge_has_a_known_class_for_every_class(source, target):
    ids = MERGES[source, target]
    assert len(ids) == len(CLASS_MAPS[source])
    assert set(ids) == set(range(len(CLASS_MAPS[target])))


@pytest.mark.parametrize("name", CLASS_MAPS)
def test_every_class_map_can_be_read_as_the_instrument_alone(name):
    assert CLASS_MAPS["foreground"] in classes.readable_as(CLASS_MAPS[name])
    ids = coarser_ids(CLASS_MAPS[name], CLASS_MAPS["foreground"])
    parts = ("shaft", "wrist", "clasper", "manipulator", "instrument", "grasper", "L-hook")
    assert ids == tuple(int(word.split()[-1] in parts and word != "suction instrument") for word in CLASS_MAPS[name])


def test_finer_maps_are_read_alike_in_one_step_and_in_two_by_the_names_of_classes():
    for source, target in MERGES:
        for between in classes.readable_as(CLASS_MAPS[source]):
            first, rest = coarser_ids(CLASS_MAPS[source], between), coarser_ids(between, CLASS_MAPS[target])
            if first and rest:
                assert tuple(rest[place] for place in first) == MERGES[source, target]
    assert MERGES["scene", "parts"] == tuple(PARTS.index(c) if c in PARTS else 0 for c in CLASS_MAPS["scene"])
    assert coarser_ids(PARTS, MANIPULATOR) == (0, 1, 2, 2) and coarser_ids(PARTS, PARTS) == (0, 1, 2, 3)
    assert coarser_ids(["a", "b"], ["a", "b"]) == (0, 1)
    assert coarser_ids(MANIPULATOR, PARTS) is None and coarser_ids(["a", "b"], PARTS) is None


@pytest.mark.parametrize(("dataset", "suction", "shaft"), [
    ("sisvse", 19, 2), ("sar_rarp50", 6, 3), ("endovis2018", (123, 15, 175), (0, 255, 0)),
])  # fmt: skip
def test_a_suction_tool_is_the_same_in_every_class_map_of_parts(dataset, suction, shaft, tmp_path):
    mask = np.array([[suction, shaft]], np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), mask[..., ::-1] if mask.ndim == 3 else mask)  # OpenCV's order is BGR
    reader = find_reader(dataset)
    label = merge_classes(reader.read_target("label", (tmp_path / "a.png",)), CLASS_MAPS[reader.CLASS_MAP], PARTS)
    assert label.tolist() == [[SUCTION, 1]] and PARTS[SUCTION] == "background"
