"""Metrics of labels: values worked by hand, and those of scikit-learn 1.9.1 and MONAI."""

import math

import numpy as np
import pytest
import torch
from monai.metrics import compute_average_precision

from shared_components.core import video_metrics as vm
from shared_components.data.files.triplets import INSTRUMENTS, NAMES, TARGETS, TRIPLETS, component_of


def test_average_precision_is_that_worked_by_hand_with_one_threshold_for_equal_scores():
    found = vm.average_precision(np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([1, 0, 1, 0, 1], bool))
    assert found == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    truth = np.array([0, 1, 1, 0, 1, 0, 0, 1], bool)
    scores = np.array([0.1, 0.4, 0.35, 0.8, 0.4, 0.2, 0.35, 0.9])
    assert vm.average_precision(scores, truth) == pytest.approx(0.7916666666666666)
    assert 0.25 + 0.375 + 4 / 24 == pytest.approx(0.7916666666666666)


def test_average_precision_equals_monais():
    rng = np.random.default_rng(0)
    scores, truth = rng.random((50, 4)), rng.random((50, 4)) < 0.3
    reference = compute_average_precision(torch.tensor(scores), torch.tensor(truth).int(), average="none")
    assert vm.average_precisions(scores, truth) == pytest.approx(np.asarray(reference), abs=1e-6)


def test_phase_scores_are_those_worked_by_hand_also_for_phases_only_in_truth_or_prediction():
    found = vm.phase_scores(np.array([0, 1, 2, 1]), np.array([0, 0, 0, 1]), 4)
    assert found["accuracy"] == 0.5
    assert found["precision"] == pytest.approx(0.75) and found["recall"] == pytest.approx(2 / 3)
    assert found["f1"] == pytest.approx(2 * 0.75 * (2 / 3) / (0.75 + 2 / 3))
    f1 = vm.f1_scores(vm.confusion(np.array([0, 1, 2, 1]), np.array([0, 0, 0, 1]), 4))
    assert f1[:3] == pytest.approx([0.5, 2 / 3, 0]) and math.isnan(f1[3])
    found = vm.phase_scores(np.array([1, 1]), np.array([0, 0]), 2)
    assert found == {"accuracy": 0, "precision": 0, "recall": 0, "f1": 0}


def test_costs_and_components_are_distances_and_maxima():
    assert vm.expected_cost(np.array([0, 5, 2]), np.array([0, 0, 3]), 6) == pytest.approx((0 + 5 + 1) / 3 / 5)
    classes, of_each = component_of(("hook/cut/liver", "grasper/grasp/liver", "hook/dissect/gut"), "i")
    assert classes == ("hook", "grasper") and of_each == (0, 1, 0)
    assert vm.component_scores(np.array([[0.1, 0.2, 0.7]]), of_each).tolist() == [[0.7, 0.2]]


def test_the_official_triplets_have_their_components_and_other_classes_are_refused():
    assert len(NAMES) == len(set(TRIPLETS)) == 100
    assert {name: len(component_of(NAMES, name)[0]) for name in ("i", "v", "t", "iv", "it")} == {
        "i": 6, "v": 10, "t": 15, "iv": 26, "it": 59,
    }  # fmt: skip
    assert NAMES[17] == "grasper/retract/gallbladder" and NAMES[60] == "hook/dissect/gallbladder"
    assert NAMES[94:] == tuple(f"{name}/null_verb/{TARGETS[-1]}" for name in INSTRUMENTS)
    with pytest.raises(ValueError, match="'liver' is no triplet"):
        component_of(("liver",), "i")
