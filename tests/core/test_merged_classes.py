"""Classes merge so that probabilities add, and never come apart."""

import pytest
import torch
from torch import nn

from shared_components.core.merged_classes import MergedClasses, merged_logits, read_as
from shared_components.data.classes import CLASS_MAPS

PARTS, MANIPULATOR, FOREGROUND = (CLASS_MAPS[n] for n in ("parts", "shaft_manipulator", "foreground"))


def a_network(channels: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, channels, 1)


def test_the_probabilities_of_classes_that_become_one_add():
    logits = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(1)) * 5
    background, shaft, wrist, clasper = logits.double().softmax(1).unbind(1)
    merged = merged_logits(logits, (0, 1, 2, 2)).double().softmax(1)
    expected = torch.stack([background, shaft, wrist + clasper], 1)
    torch.testing.assert_close(merged, expected, atol=1e-6, rtol=1e-5)


def test_by_hand_two_small_parts_outweigh_a_larger_background():
    # exp: 3, 2, 1 and 1; the background has the largest logit, the instrument 4 of 7
    logits = torch.tensor([3.0, 2.0, 1.0, 1.0]).log().view(1, 4, 1, 1)
    merged = merged_logits(logits, (0, 1, 1, 1))
    torch.testing.assert_close(merged.exp().flatten(), torch.tensor([3.0, 4.0]))
    assert logits.argmax(1).item() == 0 and merged.argmax(1).item() == 1


def test_a_class_that_merges_with_no_other_keeps_its_bits():
    logits = torch.randn(1, 4, 2, 2) * 30
    assert torch.equal(merged_logits(logits, (0, 1, 2, 2))[:, :2], logits[:, :2])


def test_large_logits_stay_finite():
    logits = torch.full((1, 4, 1, 1), 500.0)
    assert torch.isfinite(merged_logits(logits, (0, 1, 1, 1))).all()


def test_a_network_answers_in_coarser_classes_and_says_which_it_merged():
    image, network = torch.rand(1, 3, 2, 2), a_network()
    merged = read_as(network, PARTS, MANIPULATOR)
    assert isinstance(merged, MergedClasses)
    assert merged.merges == {"background": ["background"], "shaft": ["shaft"], "manipulator": ["wrist", "clasper"]}
    assert torch.equal(merged(image), merged_logits(network(image), (0, 1, 2, 2)))


def test_a_network_of_just_these_classes_is_itself():
    network = a_network()
    assert read_as(network, PARTS, PARTS) is network


@pytest.mark.parametrize(("learnt", "wanted"), [(MANIPULATOR, PARTS), (FOREGROUND, MANIPULATOR)])
def test_what_was_learnt_as_one_cannot_be_told_apart(learnt, wanted):
    with pytest.raises(ValueError, match="can be merged, and not told apart"):
        read_as(a_network(), learnt, wanted)
