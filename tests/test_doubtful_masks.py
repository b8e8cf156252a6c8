"""The program that measures doubtful masks counts frames and stretches."""

import numpy as np
import torch
from torch import nn

from evidence.doubtful_masks import Judged, judged, row
from shared_components.core.trained_model import Trained
from tests.inference.conftest import SEGMENTATION

SIZE = (32, 64)


class Left(nn.Module):
    """Finds bright pixels in the left half of its input."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(9.0))

    def forward(self, image):
        left = torch.arange(image.shape[-1]) < image.shape[-1] // 2
        found = torch.where(left, image[:, :1] - 0.5, torch.tensor(-1.0)) * self.scale
        return torch.cat([-found, found, found - 9, found - 9], 1)


def test_a_frame_is_wrong_if_much_of_its_instruments_is_tissue():
    model, bright = Trained(Left().eval(), SEGMENTATION, SIZE), np.zeros((*SIZE, 3), np.uint8)
    bright[:, :16] = 255
    label = np.zeros(SIZE, np.uint8)
    label[:, :8] = 1
    dark = (np.zeros_like(bright), np.zeros_like(label))
    found, stretches = judged(model, iter([(bright, label), (bright, label), dark, dark, dark]))
    assert stretches == 1 and [frame.wrong for frame in found] == [True, True, False, False, False]
    assert found[0] == Judged(0.25, True, 2 * 8 / (16 + 8)) and found[2].changed == 0
    assert row("a", [(found, stretches)]) == ("a", "5", "2", "2 of 2", "0.67", "1.00", "1 of 1", "1")
