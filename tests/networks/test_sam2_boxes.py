"""Boxes: around the whole frame, and those that are refused."""

import pytest
import torch

from shared_components.networks.sam2_steps import check_boxes, filled, whole_frame

NAN = float("nan")


def test_the_whole_first_frame_is_from_its_first_pixel_to_the_end_of_its_last():
    boxes = whole_frame(1, 2, 2, 32)
    assert boxes[0, 0].tolist() == [[0, 0, 32, 32]] * 2 and boxes[0, 1].isnan().all()
    check_boxes(boxes, 1, 2, 32)


def test_a_filled_box_counts_the_share_of_each_cell_that_it_covers():
    found = filled(torch.tensor([[4.0, 2.0, 10.0, 3.0], [-3.0, 0.0, 20.0, 16.0]]), 16)
    down, across = torch.tensor([0.25, 0, 0, 0]), torch.tensor([0, 1, 0.5, 0])  # of cells 0-4, 4-8, 8-12 and 12-16
    torch.testing.assert_close(found[0, 0], 2 * down[:, None] * across - 1)
    assert found.shape == (2, 1, 4, 4) and (found[1] == 1).all()


@pytest.mark.parametrize("box", [[5, 5, 4, 9], [40, 0, 50, 9], [-9, 0, -2, 9], [NAN, 0, 9, 9], [0, 0, float("inf"), 9]])
def test_a_box_that_is_empty_outside_or_not_finite_is_refused_with_its_numbers(box):
    with pytest.raises(ValueError, match="is invalid in a frame of 32x32"):
        check_boxes(torch.tensor(box, dtype=torch.float32).reshape(1, 1, 1, 4), 1, 1, 32)


def test_boxes_of_another_shape_and_several_of_depth_are_refused():
    with pytest.raises(ValueError, match=r"boxes \(1, 2, objects, 4\) for 1 clips of 2 frames, and got \[1, 3, 1, 4\]"):
        check_boxes(whole_frame(1, 3, 1, 32), 1, 2, 32)
    with pytest.raises(ValueError, match="depth from one box per frame, and got 2"):
        check_boxes(whole_frame(1, 1, 2, 32), 1, 1, 32, depth=True)
