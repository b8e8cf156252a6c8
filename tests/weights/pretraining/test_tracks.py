"""Scores of tracking: by age, beside the filled box, and the first masks of network and truth held still."""

import math

import pytest
import torch
from torch import nn

from shared_components.weights.pretraining import tracks
from shared_components.weights.pretraining.tracks import BOX, NETWORK, OWN, TRUE, Tracks, Video, filled, iou_by_age
from tests.weights.pretraining.conftest import tiny


class Known(nn.Module):
    def __init__(self, label):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.label = label

    def forward(self, clip, boxes):
        return nn.functional.one_hot(self.label, 4).movedim(-1, 2).float()  # (1, T, H, W) -> (1, T, 4, H, W)


def moving():
    """Return labels of a triangle of 10 pixels that moves 2 columns to the right, and of an object that leaves."""
    label = torch.zeros(1, 2, 8, 16, dtype=torch.long)
    for row in range(4):
        label[0, 0, row, : row + 1] = 1
        label[0, 1, row, 2 : row + 3] = 1
    label[0, 0, 7, 8:10] = 2
    label[0, 1, 7, 12] = 3  # seen too late for a box
    return label


def test_scores_are_worked_by_hand_and_training_mode_stays():
    label = moving()
    outcome = iou_by_age(Known(label), [Video(torch.zeros(1, 2, 3, 8, 16), label)])
    assert outcome["objects"] == [2, 1] and outcome[NETWORK] == [1.0, 1.0]
    assert outcome[TRUE] == outcome[OWN] == [1.0, pytest.approx(3 / 17)]  # 3 pixels of 10 and 10 are common
    # boxes of 16 pixels around 10, and of 2 around 2; a frame later 7 of the 10 lie in the box
    assert outcome[BOX] == [pytest.approx((10 / 16 + 1) / 2), pytest.approx(7 / 19)]
    label = moving()
    outcome = iou_by_age(Known(label.flip(1)), [Video(torch.zeros(1, 2, 3, 8, 16), label)])  # second frame first
    assert outcome[NETWORK] == [pytest.approx(3 / 17 / 2), pytest.approx(3 / 17)]
    assert outcome[OWN] == [pytest.approx(3 / 17 / 2), 1.0] and outcome[TRUE] == [1.0, pytest.approx(3 / 17)]
    label = moving()
    network = Known(torch.zeros_like(label)).train()
    assert iou_by_age(network, [Video(torch.zeros(1, 2, 3, 8, 16), label)])[NETWORK] == [0.0, 0.0]
    assert network.training


def test_a_box_fills_whole_pixels_and_none_where_it_is_missing():
    boxes = torch.tensor([[[[1.0, 0, 3, 2], [math.nan] * 4, [0, 0, 1, 1]]]])
    masks = filled(boxes, torch.zeros(1, 2, 4, 4, dtype=torch.long))
    assert masks.shape == (2, 3, 4, 4) and masks.sum((2, 3)).tolist() == [[4, 0, 1]] * 2 and masks[1, 0, 0, 1]


def test_held_out_videos_are_scored_by_group_and_summed_up(monkeypatch):
    monkeypatch.setattr(tracks, "LOOKS_SCORED", 1)
    monkeypatch.setattr(tracks, "LOOKS", ("rose",))
    checks = Tracks(tiny())
    (video,) = checks._videos["named"]
    assert video.clip.shape == (1, 8, 3, 64, 96) and 0 < int(video.label[0, 0].max()) <= 3
    monkeypatch.setattr(Known, "forward", lambda self, clip, boxes: torch.zeros(*clip.shape[:2], 4, *clip.shape[3:]))
    scores = checks.scores(Known(None))
    assert set(scores) == {"random", "named"} and scores["named"][TRUE][0] == 1.0
    assert "random looks network 0.000 0.000, filled box 0." in checks.summary(scores)
