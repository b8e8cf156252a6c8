"""Boxes are drawn around what a label shows, on the frames that a rule names, and never leave their frame."""

import math

import pytest
import torch

from shared_components.core.prompts import Prompts, class_boxes, jittered, whole_frames

SIZE = (6, 9)


def by_hand(frame: torch.Tensor, wanted: int) -> list[float]:
    """Return the box of a class in one frame by a loop over its pixels."""
    pixels = [(x, y) for y in range(frame.shape[0]) for x in range(frame.shape[1]) if int(frame[y, x]) == wanted]
    if not pixels:
        return [math.nan] * 4
    xs, ys = [x for x, _ in pixels], [y for _, y in pixels]
    return [min(xs), min(ys), max(xs) + 1, max(ys) + 1]


def test_a_box_is_found_by_a_loop_over_the_pixels_and_nan_if_the_class_is_absent():
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 30, (2, 3, *SIZE), generator=generator).clamp_max(255)
    label[label > 5] = 0
    label[0, 1, 2, 3] = 255  # ignored
    expected = torch.tensor([[[by_hand(frame, wanted) for wanted in range(1, 8)] for frame in clip] for clip in label])
    boxes = class_boxes(label, 8)
    assert (boxes.shape, boxes.dtype) == ((2, 3, 7, 4), torch.float32)
    assert expected.isnan().any() and torch.equal(boxes.isnan(), expected.isnan())
    torch.testing.assert_close(boxes, expected, equal_nan=True)
    torch.testing.assert_close(class_boxes(label[1].to(torch.uint8), 8), expected[1], equal_nan=True)
    label = torch.zeros(1, *SIZE, dtype=torch.long)
    label[0, 5, 8] = 1
    assert class_boxes(label, 2).tolist() == [[[8.0, 5.0, 9.0, 6.0]]]


@pytest.mark.parametrize(("rule", "kept"), [("first", [0]), ("every_second", [0, 2, 4])])
def test_a_rule_keeps_the_boxes_of_its_frames_alone(rule, kept):
    boxes = whole_frames(2, 5, size=SIZE)
    shown = Prompts(rule)(boxes, size=SIZE)
    assert [t for t in range(5) if bool(shown[:, t].isfinite().all())] == kept
    assert bool(shown[:, [t for t in range(5) if t not in kept]].isnan().all())
    assert bool(boxes.isfinite().all())  # what was given is as it was


def test_only_training_moves_boxes_which_stay_near_their_object_in_the_frame():
    generator = torch.Generator().manual_seed(1)
    boxes = torch.tensor([[2.0, 1.0, 6.0, 4.0], [8.0, 5.0, 9.0, 6.0], [0.0, 0.0, 9.0, 6.0], [math.nan] * 4])
    boxes = boxes.expand(500, 1, 4, 4)
    moved = jittered(boxes, generator, amount=0.25, size=SIZE)
    assert bool(moved[:, :, 3].isnan().all())
    known = moved[:, :, :3]
    assert known[..., :2].min() >= 0 and known[..., 2].max() <= 9 and known[..., 3].max() <= 6
    assert bool((known[..., 2:] - known[..., :2] >= 1 - 1e-6).all())
    change = (known[:, :, 0] - boxes[:, :, 0]).abs().amax((0, 1))
    assert bool((change <= torch.tensor([1.0, 0.75, 1.0, 0.75])).all()) and bool((change > 0.6).all())
    assert torch.equal(jittered(boxes, torch.Generator().manual_seed(1), amount=0.25, size=SIZE)[:, :, :3], known)
    boxes, prompts = whole_frames(1, 2, size=SIZE) / 2, Prompts(jitter=0.2)
    assert torch.equal(prompts(boxes, size=SIZE)[:, 0], boxes[:, 0])
    assert not torch.equal(prompts(boxes, size=SIZE, generator=torch.Generator().manual_seed(0))[:, 0], boxes[:, 0])
