"""A finer class map is read as a coarser one."""

from __future__ import annotations

import numpy as np
import pytest

from shared_components.data.classes import CLASS_MAPS, MERGES, coarser_ids, merge_classes, readable_as


def test_wrist_and_clasper_become_the_manipulator():
    mask = np.array([[0, 1, 2, 3]], dtype=np.uint8)

    assert merge_classes(mask, "parts", "shaft_manipulator").tolist() == [[0, 1, 2, 2]]


def test_a_class_map_read_as_itself_is_unchanged():
    mask = np.array([[0, 2]], dtype=np.uint8)

    assert merge_classes(mask, "shaft_manipulator", "shaft_manipulator") is mask


def test_a_manipulator_cannot_be_told_apart():
    with pytest.raises(KeyError):
        merge_classes(np.zeros((1, 1), dtype=np.uint8), "shaft_manipulator", "parts")


@pytest.mark.parametrize(("source", "target"), list(MERGES))
def test_every_merge_has_a_known_class_for_every_class(source, target):
    ids = MERGES[source, target]

    assert len(ids) == len(CLASS_MAPS[source])
    assert set(ids) == set(range(len(CLASS_MAPS[target])))


@pytest.mark.parametrize("name", CLASS_MAPS)
def test_every_class_map_can_be_read_as_the_instrument_alone(name):
    assert "foreground" in readable_as(name)
    ids = coarser_ids(CLASS_MAPS[name], CLASS_MAPS["foreground"])
    assert ids == tuple(min(place, 1) for place in range(len(CLASS_MAPS[name])))


def test_classes_are_placed_by_their_names():
    parts, manipulator = CLASS_MAPS["parts"], CLASS_MAPS["shaft_manipulator"]
    assert coarser_ids(parts, manipulator) == (0, 1, 2, 2)
    assert coarser_ids(parts, parts) == (0, 1, 2, 3)
    assert coarser_ids(["a", "b"], ["a", "b"]) == (0, 1)
    assert coarser_ids(manipulator, parts) is None
    assert coarser_ids(["a", "b"], parts) is None
