"""Only maps have pixels; vectors and scalars pass resizing and augmentation as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared_components.data.files import DataError
from shared_components.data.targets import form_of, of_last_frame, over_time, refuse_other_form
from shared_components.data.transforms import Augmentation, augment, resize_target, to_tensors, turn

TARGETS = {
    "label": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "triplets": np.eye(100, dtype=np.uint8)[7],
    "phase": np.array(3),
}


def test_a_vector_is_no_map_and_is_not_resized():
    with pytest.raises(ValueError, match=r"a target of shape \(100,\) is no map and has no size"):
        resize_target(TARGETS["triplets"], 32, 48)


@pytest.mark.parametrize("clips", [False, True])
def test_augmentation_moves_maps_alone(clips):
    targets = {name: over_time([target] * (2 if clips else 1)) for name, target in TARGETS.items()}
    images = np.zeros((2 if clips else 1, 3, 4, 3), np.uint8)
    flipped = augment(images, targets, Augmentation(True, False, 4, 0.0, 0.0))[1]
    turned = turn(images, targets, 180.0)[1]
    np.testing.assert_array_equal(flipped["label"], targets["label"][..., ::-1])
    np.testing.assert_array_equal(turned["label"], targets["label"][..., ::-1, ::-1])
    for name in ("triplets", "phase"):
        assert flipped[name] is targets[name] and turned[name] is targets[name]
        np.testing.assert_array_equal(of_last_frame(name, targets[name]), TARGETS[name])
    assert to_tensors(images, targets)["phase"].shape == ((2,) if clips else ())


@pytest.mark.parametrize(("name", "shape"), [("label", (100,)), ("triplets", ()), ("phase", (7,)), ("grade", (4, 4))])
def test_another_form_is_one_sentence(name, shape):
    with pytest.raises(DataError, match=rf"a\.txt: gives '{name}' of shape .*, which is no {form_of(name)}: "):
        refuse_other_form(name, np.zeros(shape), Path("a.txt"))
    with pytest.raises(ValueError, match="target 'colour' has no form; add it to FORMS"):
        form_of("colour")
