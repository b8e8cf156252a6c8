"""A prompted network learns to follow objects and, in turn, to see depth, by the same tensors."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shared_components.core.task import make_task
from shared_components.weights.pretraining import lessons as teaching

CLASSES = ("background", "shaft", "wrist", "clasper")
CLIPS = {"frames": 2, "interval": 1.0, "targets_of": "all", "prompts": "first"}


class Shared(nn.Module):
    """Stands for a network that can share its tensors; it remembers for what."""

    channels = 4

    def sharing(self, channels):
        twin = Shared()
        twin.channels = channels
        return twin


def bundle(**tasks):
    return SimpleNamespace(name="toy", tasks=tasks)


def segmentation():
    return make_task("segmentation", CLIPS, classes=CLASSES)


def test_an_object_has_one_box_where_it_is_first_seen():
    boxes = torch.full((1, 3, 2, 4), math.nan)
    boxes[0, 1:, 0], boxes[0, :, 1] = 5.0, 2.0
    outcome = teaching.first_boxes(boxes)
    assert (~outcome[0, :, :, 0].isnan()).tolist() == [[False, True], [True, False], [False, False]]
    assert (outcome[0, 1, 0] == 5).all() and (outcome[0, 0, 1] == 2).all()


@pytest.mark.parametrize("shape", [(1, 2, 32, 32), (1, 32, 32)])
def test_boxes_are_around_objects_and_moved(shape):
    label = torch.zeros(shape, dtype=torch.long)
    label[..., 10:20, 4:24] = 2
    task = teaching.Following(segmentation(), 3)
    batch = {"image": torch.zeros(1, 3, 32, 32), "label": label}
    boxes = task.add_randomness(batch, torch.Generator().manual_seed(1))["boxes"]
    assert boxes.shape == (1, len(label.view(-1, 32, 32)), 3, 4) and boxes[:, :, [0, 2]].isnan().all()
    away = (boxes[0, 0, 1] - torch.tensor([4.0, 10.0, 24.0, 20.0])).abs()
    assert (away > 0).all() and (away <= torch.tensor([2.0, 1.0, 2.0, 1.0])).all()


def test_every_fourth_lesson_is_depth_and_a_network_without_prompts_learns_only_the_task():
    depth, network = {"prompts": "first", "targets_of": "all"}, Shared()
    lessons = teaching.lessons_for(bundle(segmentation={}, depth=depth), segmentation(), network, objects=3)
    assert [one.channels for _, one in lessons] == [4, 4, 4, 1] and lessons[0][1] is network
    assert lessons[3][0].card.kind == "depth"
    assert len(teaching.lessons_for(bundle(segmentation={}), segmentation(), network, objects=3)) == 1
    spec = teaching.spec_of(bundle(segmentation={}, depth=depth), segmentation(), clip=4)
    assert spec.targets == ("label", "depth") and spec.frames == 4
    plain, network = make_task("segmentation", {}, classes=CLASSES), Shared()
    assert teaching.lessons_for(bundle(segmentation={}), plain, network, objects=3) == [(plain, network)]
    assert teaching.spec_of(bundle(segmentation={}), plain, clip=4) == plain.spec
    with pytest.raises(ValueError, match=r"toy: .* learns depth along with segmentation; set --task segmentation"):
        teaching.lessons_for(bundle(depth={}), make_task("depth", CLIPS, classes=()), network, objects=3)


class Encoder(nn.Module):
    """Maps of 1, 2 and 3 channels, at strides of 4, 8 and 16."""

    def encode(self, clip):
        B, T, _, H, W = clip.shape
        return tuple(torch.ones(B, T, c, H // s, W // s) * c for c, s in ((1, 4), (2, 8), (3, 16)))


def test_an_encoder_learns_the_class_in_the_middle_of_every_cell():
    network = teaching.PixelClasses(Encoder(), 5)
    logits = network(torch.zeros(2, 2, 3, 64, 64))
    assert logits.shape == (4, 5, 16, 16)
    weight, bias = network.layer.weight[:, :, 0, 0], network.layer.bias
    assert torch.allclose(logits[0, :, 3, 3], weight @ torch.tensor([1.0, 2, 2, 3, 3, 3]) + bias, atol=1e-6)
    label = torch.randint(5, (2, 2, 64, 64), generator=torch.Generator().manual_seed(0))
    loss = teaching.Seeing({"cross_entropy": 1.0, "log_iou": 0.0}).loss(logits, {"label": label})
    ids = [[[label[b, t, 4 * y + 2, 4 * x + 2] for x in range(16)] for y in range(16)] for b in (0, 1) for t in (0, 1)]
    assert torch.isclose(loss, F.cross_entropy(logits, torch.tensor(ids)))
