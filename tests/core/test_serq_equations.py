"""How far SERQ's descriptor moved, and the features that its equations are about."""

import copy

import pytest
import torch

from shared_components.core import serq_equations as equations
from shared_components.core.serq_equations import FramesAlone, moved
from tests.core.serq_rounds import Set, seeded


def test_the_descriptors_movement_is_that_worked_by_hand():
    assert moved(torch.tensor([3.0, 0.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.8)
    assert moved(torch.zeros(2), torch.zeros(2)) == 0 and moved(torch.zeros(2), torch.ones(2)) == 1
    assert moved(torch.ones(2), torch.zeros(2)) == 1


def test_the_reports_distances_are_means_over_frames_with_dropout_off():
    network, other, data = seeded(dropout=0.5), seeded(), Set((8, 16))
    with torch.no_grad():
        other.encoder.last.bias += 0.5
    descriptor = torch.full((4, 2, 4), 0.25)
    found = equations.compared(network.train(), other, descriptor, [data.batch(0), {"image": data.images[2:3]}])
    assert found["descriptor_square"] == pytest.approx(0.0625)
    assert found["difference_square"] == pytest.approx(0.25, rel=1e-4)
    assert found["distance_square"] == pytest.approx(0.0625, rel=1e-4)


def test_features_are_means_over_frames_without_dropout_that_pass_only_encoder_and_decoder():
    network, data = seeded(dropout=0.5), Set((8, 16))
    state = copy.deepcopy(network.state_dict())
    found, same = equations.mean_features(
        [network, network], [data.batch(0), {k: v[:1] for k, v in data.batch(1).items()}]
    )
    with torch.no_grad():
        maps = [network.encoder(data.images[n : n + 1])[-1][0] for n in range(3)]  # in evaluation, dropout off
    torch.testing.assert_close(found, (maps[0] + maps[1] + maps[2]) / 3)
    assert torch.equal(found, same)
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    network, clips = seeded().eval(), torch.rand(2, 3, 3, 8, 16)
    expected = network.decode(network.encoder(clips[:, -1]))
    assert torch.equal(FramesAlone(network)(clips), expected)
    assert torch.equal(FramesAlone(network)(clips[:, -1]), expected)
