"""The program that measures doubtful masks counts frames and stretches."""

import numpy as np

from evidence.doubtful_masks import Judged, judged, row
from shared_components.core.trained_model import Trained
from tests.inference.conftest import SEGMENTATION
from tests.inference.test_doubtful import SIZE, Sided


def test_a_frame_is_wrong_if_much_of_its_instruments_is_tissue():
    model, bright = Trained(Sided().eval(), SEGMENTATION, SIZE), np.zeros((*SIZE, 3), np.uint8)
    bright[:, :16] = 255
    label = np.zeros(SIZE, np.uint8)
    label[:, :8] = 1
    dark = (np.zeros_like(bright), np.zeros_like(label))
    found, stretches = judged(model, iter([(bright, label), (bright, label), dark, dark, dark]))
    assert stretches == 1 and [frame.wrong for frame in found] == [True, True, False, False, False]
    assert found[0] == Judged(0.25, True, 2 * 8 / (16 + 8)) and found[2].changed == 0
    assert row("a", [(found, stretches)]) == ("a", "5", "2", "2 of 2", "0.67", "1.00", "1 of 1", "1")
