"""A finer class map is read as a coarser one."""

from __future__ import annotations

import numpy as np
import pytest

from shared_components.data.classes import CLASS_MAPS, MERGES, merge_classes


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
