"""Classification: losses, scores of grades worked by hand, rows and pictures."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shared_components.core.task import make_task
from shared_components.data.files.classes import LABELS
from shared_components.data.readers import find_reader
from shared_components.data.samples import Item, SampleSpec

GRADES = ("normal", "oedema", "fibrin", "necrosis", "abscess", "peritonitis")
TASK = make_task("classification", {"target": "grade", "ordered": True}, classes=GRADES)


def item(truth, video="a"):
    return Item(np.zeros((2, 40, 60, 3), np.uint8), {"grade": np.int64(truth)}, "x", video, 0)


def sure(grade):
    return np.eye(6, dtype=np.float32)[grade]


def test_cost_adds_the_expected_distance_of_the_probabilities():
    costly = make_task("classification", {"target": "grade", "ordered": True, "cost": 2.0}, classes=GRADES)
    logits, batch = torch.randn(1, 6, generator=torch.Generator().manual_seed(0)), {"grade": torch.tensor([1])}
    p = logits.softmax(1)[0].tolist()
    expected = sum(share * abs(j - 1) / 5 for j, share in enumerate(p))
    assert TASK.loss(logits, batch).item() == pytest.approx(F.cross_entropy(logits, batch["grade"]).item())
    assert costly.loss(logits, batch).item() == pytest.approx(TASK.loss(logits, batch).item() + 2 * expected)


def test_scores_of_grades_are_those_worked_by_hand():
    """True 0, 0, 3, 5; predicted 0, 1, 3, 0."""
    pairs = ((0, 0), (1, 0), (3, 3), (0, 5))
    scores = [TASK.score(sure(p), item(t, str(n)), quick=True) for n, (p, t) in enumerate(pairs)]
    result = TASK.summarise(scores)
    assert result["accuracy"]["mean"] == 0.5
    assert result["balanced_accuracy"]["mean"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert result["expected_cost"]["mean"] == pytest.approx((0 + 1 + 0 + 5) / 5 / 4)
    assert result["macro_f1"]["mean"] == pytest.approx((2 / 4 + 0 + 1 + 0) / 4)
    assert result["classes"]["normal"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "samples": 2}
    assert result["classes"]["abscess"]["recall"] is None
    assert TASK.per_video(scores)["3"] == {"accuracy": 0.0, "expected_cost": 1.0}
    assert [TASK.rows(score)[0]["off"] for score in scores] == [0, 1, 0, -5]


def test_scores_are_beside_the_best_answer_without_a_look():
    """True 0, 0, 1, 5: always 0 is right twice, always 1 costs (1 + 1 + 0 + 4) / 5 / 4, guesses have an F1 of 1/3."""
    scores = [TASK.score(sure(3), item(truth, str(n)), quick=True) for n, truth in enumerate((0, 0, 1, 5))]
    chance = TASK.summarise(scores)["chance"]
    assert chance["accuracy"]["mean"] == 0.5 and chance["expected_cost"]["mean"] == pytest.approx(6 / 5 / 4)
    assert chance["macro_f1"]["mean"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["gynsurg_action", "gynsurg_bleeding", "gynsurg_smoke", "appendicitis_grades"])
def test_the_target_follows_from_the_classes(name):
    task = make_task("classification", classes=LABELS[name])
    target = {"appendicitis_grades": "grade"}.get(name, name.partition("_")[2])
    assert (task.spec.targets, task.ordered) == ((target,), target == "grade")
    assert find_reader("appendix300" if target == "grade" else "gynsurg").LABELS[target] == name


def test_a_sample_may_be_a_whole_video():
    numbers = {"frames": 10, "targets_of": "video", "random_frames": True}
    spec = make_task("classification", numbers, classes=LABELS["gynsurg_action"]).spec
    assert spec == SampleSpec(("action",), frames=10, targets_of="video", random_frames=True)


def test_classes_of_another_target_and_a_cost_without_an_order_are_refused():
    sentence = r"target is 'action', but the site's 2 classes .* belong to 'smoke'; remove 'target'"
    with pytest.raises(ValueError, match=sentence):
        make_task("classification", {"target": "action"}, classes=LABELS["gynsurg_smoke"])
    with pytest.raises(ValueError, match="ordered: true"):
        make_task("classification", {"cost": 1.0}, classes=GRADES)


def test_weights_are_by_name_and_classes_without_order_have_no_cost():
    task = make_task("classification", {"weights": {"suction": 4.0}}, classes=("rest", "suction"))
    assert "expected_cost" not in [metric.name for metric in task.metrics] and task.spec.targets == ("action",)
    logits, action = torch.randn(2, 2), torch.tensor([0, 1])
    weighted = F.cross_entropy(logits, action, torch.tensor([1.0, 4.0]))
    assert torch.equal(task.loss(logits, {"action": action}), weighted)


def test_pictures_show_truth_and_probabilities():
    sheet = TASK.sheet(sure(2), item(3))
    assert sheet.panels[1].note == "fibrin instead" and TASK.sheet(sure(3), item(3)).panels[1].note == "correct"
    image = np.zeros((40, 60, 3), np.uint8)
    assert TASK.files(sure(2), image)["overlays"].shape == TASK.files(sure(5), image)["overlays"].shape
    assert list(TASK.charts([TASK.score(sure(2), item(3), quick=True)])) == ["confusion"]
