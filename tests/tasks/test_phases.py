"""Phases: losses of frames, clips and stages, scores by video, rows, and courses as pictures."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shared_components.core.task import make_task
from shared_components.data.files.classes import IGNORED
from shared_components.data.samples import Item

NAMES = ("preparation", "dissection", "packing")
TASK = make_task("phases", classes=NAMES)
WHOLE = {"frames": 4, "interval": 1.0, "targets_of": "all", "every_frame": True}


def item(truth, video="a", frames=1):
    return Item(np.zeros((frames, 40, 60, 3), np.uint8), {"phase": np.array(truth)}, "x", video, 0)


def sure(*phases):
    return np.eye(3, dtype=np.float32)[list(phases)]


def test_loss_is_the_weighted_cross_entropy():
    task = make_task("phases", {"weights": {"dissection": 3.0}}, classes=NAMES)
    logits, phase = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1])
    each = F.cross_entropy(logits, phase, reduction="none")
    assert task.loss(logits, {"phase": phase}).item() == pytest.approx((each[0] + 3 * each[1]).item() / 4)


def test_every_stage_counts_alike_and_unlabelled_frames_do_not():
    stages = torch.randn(2, 1, 4, 3, generator=torch.Generator().manual_seed(0))
    phase = torch.tensor([[0, 1, IGNORED, 2]])
    known = [F.cross_entropy(stage[0, [0, 1, 3]], phase[0, [0, 1, 3]]) for stage in stages]
    assert TASK.loss(stages, {"phase": phase}).item() == pytest.approx((sum(known) / 2).item())
    assert TASK.loss(stages, {"phase": torch.full((1, 4), IGNORED)}).item() == 0


def test_the_current_frame_counts_where_outputs_or_labels_have_it_alone():
    clips, phase = torch.randn(2, 4, 3), torch.tensor([1, 2])
    assert torch.equal(TASK.loss(clips, {"phase": phase}), F.cross_entropy(clips[:, -1], phase))
    every = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 2]])
    assert torch.equal(TASK.loss(clips[:, -1], {"phase": every}), F.cross_entropy(clips[:, -1], phase))


def test_answers_are_of_the_last_stage_and_of_every_frame_where_it_is_asked():
    stages = torch.randn(2, 1, 4, 3)
    (answer,) = TASK.postprocess(stages, {}, [(8, 8)])
    assert answer == pytest.approx(stages[1, 0, -1:].softmax(-1).numpy())
    (answer,) = make_task("phases", WHOLE, classes=NAMES).postprocess(stages, {}, [(8, 8)])
    assert answer == pytest.approx(stages[1, 0].softmax(-1).numpy())


def test_scores_are_means_over_videos():
    """Video a: 3 of 4 frames right; b: its single frame is right."""
    scores = [TASK.score(sure(p), item(t), quick=True) for p, t in ((0, 0), (0, 0), (1, 1), (2, 1))]
    scores.append(TASK.score(sure(2), item(2, "b"), quick=True))
    result = TASK.summarise(scores)
    assert result["accuracy"]["mean"] == pytest.approx((3 / 4 + 1) / 2) and result["std"]["accuracy"] == 1 / 8
    assert result["recall"]["mean"] == pytest.approx((3 / 4 + 1) / 2) and result["precision"]["mean"] == 1
    assert result["f1"]["mean"] == pytest.approx((2 * 0.75 / 1.75 + 1) / 2)
    assert result["macro_f1"]["mean"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert result["classes"]["dissection"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3)}
    assert result["frames"] == 5 and result["videos"] == {"count": 2}


def test_a_whole_video_is_scored_frame_by_frame():
    task = make_task("phases", WHOLE, classes=NAMES)
    score = task.score(sure(0, 1, 1, 2), item([0, 0, IGNORED, 2], frames=4), quick=True)
    assert task.summarise([score])["frames"] == 3 and score.truth.tolist() == [0, 0, 2]
    assert [row["right"] for row in task.rows(score)] == [1, 0, 1]


def test_pictures_show_courses_and_confusions():
    task, image = make_task("phases", WHOLE, classes=NAMES), np.zeros((40, 60, 3), np.uint8)
    whole = item([0, 0, 1, 2], frames=4)
    charts = task.charts([task.score(sure(0, 1, 1, 2), whole, quick=True)])
    assert list(charts) == ["timeline-a", "confusion"]
    assert {picture.dtype for picture in charts.values()} == {np.dtype(np.uint8)}
    assert [panel.name for panel in task.sheet(sure(0, 1, 1, 2), whole).panels] == ["last frame", "timeline"]
    assert [panel.note for panel in TASK.sheet(sure(1), item(0)).panels] == ["", "dissection instead"]
    assert len({task.files(sure(*p), image)["overlays"].shape for p in ((0, 1), (1, 1))}) == 1
    assert len({TASK.files(sure(p), image)["overlays"].shape for p in range(3)}) == 1


@pytest.mark.parametrize(("numbers", "message"), [
    ({"weights": [1, 2]}, "its settings"), ({"weights": {"packing": 0}}, "above 0"), ({"every_frame": 1}, "true or"),
])  # fmt: skip
def test_wrong_numbers_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        make_task("phases", numbers, classes=NAMES)
