"""SERQ's equations against scalar loops, and the features that they are about."""

import copy
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shared_components.core import serq_equations as equations
from shared_components.core.serq_equations import Explicit, FramesAlone, descriptor_distance, moved, moving_average
from tests.core.serq_rounds import Set, seeded


def test_the_running_mean_and_the_descriptors_movement_are_those_worked_by_hand():
    first = moving_average(None, torch.tensor([[[2.0, -4.0]]]), share=0.9)
    assert first.tolist() == [[[2.0, -4.0]]]
    second = moving_average(first, torch.tensor([[[12.0, 6.0]]]), share=0.9)
    torch.testing.assert_close(second, torch.tensor([[[3.0, -3.0]]]))  # 0.9*2 + 0.1*12, 0.9*-4 + 0.1*6
    assert moving_average(first, second, share=0.0).equal(second)
    assert moved(torch.tensor([3.0, 0.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.8)
    assert moved(torch.zeros(2), torch.zeros(2)) == 0 and moved(torch.zeros(2), torch.ones(2)) == 1
    assert moved(torch.ones(2), torch.zeros(2)) == 1


def test_eqs_11_and_12_by_scalar_loops():
    drawn = torch.randn(3, 2, 2, 2, requires_grad=True)
    mean, descriptor, average = torch.randn(3, 2, 2, 2)
    found = descriptor_distance(mean, drawn, descriptor, average)
    found.backward()
    total = 0.0
    for c, y, x in product(range(2), repeat=3):
        off = float(mean[c, y, x]) - float(descriptor[c, y, x]) - float(average[c, y, x])
        total += off**2
        for b in range(3):
            assert float(drawn.grad[b, c, y, x]) == pytest.approx(2 * off / 3 / 8, rel=1e-5)
    assert float(found.detach()) == pytest.approx(total / 8, rel=1e-5)
    features, pretrained, descriptor = (torch.randn(3, 2, 2, 2), torch.randn(3, 2, 2, 2), torch.randn(2, 2, 2))
    frames = []
    for b in range(3):
        squares = [
            (float(features[b, c, y, x]) - (float(pretrained[b, c, y, x]) - float(descriptor[c, y, x]))) ** 2
            for c, y, x in product(range(2), repeat=3)
        ]
        frames.append(sum(squares) / 8)
    found = float(equations.representation_distance(features, pretrained, descriptor))
    assert found == pytest.approx(sum(frames) / 3, rel=1e-5)


def explicit(rate, *, steps, size=64):
    """Return Eq. 11's objective after some batches of two frames whose features are fixed, and their expectation."""
    generator = torch.Generator().manual_seed(4)
    expected, average = torch.randn(2, size, 1, 1, generator=generator)
    objective = Explicit(average, 300.0, rate, expected.clone(), torch.zeros_like(average))
    network = torch.nn.Module()
    network.encoder = lambda image: [image]
    network.decode = lambda maps: maps[-1].requires_grad_()
    task = SimpleNamespace(loss=lambda outputs, batch: outputs.sum())
    for _ in range(steps):
        image = expected + torch.randn(2, size, 1, 1, generator=generator)
        objective(network, {"image": image}, SimpleNamespace(task=task))
    return objective, expected - average


def test_the_descriptor_descends_eq_11_to_the_difference_of_the_means():
    objective, _ = explicit(0.2, steps=1)
    D = nn.Parameter(torch.zeros_like(objective.average))
    descriptor_distance(objective.mean, objective.mean[None], D, objective.average).backward()
    torch.optim.SGD([D], lr=0.2 * D.numel() / 2).step()
    torch.testing.assert_close(objective.descriptor, D.detach())
    objective, difference = explicit(0.2, steps=26)
    left = float((objective.descriptor - difference).square().mean())
    assert left < 0.1 * float(difference.square().mean())
    still, _ = explicit(0.0, steps=26)
    assert not still.descriptor.any()


def shrunk(distance):
    """Train the scale of zero-mean features towards a mean of zero, and return what is left of their variance."""
    generator, scale = torch.Generator().manual_seed(2), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([scale], lr=0.05)
    for _ in range(50):
        features = scale * torch.randn(2, 8, 4, 4, generator=generator)
        optimizer.zero_grad()
        distance(features).backward()
        optimizer.step()
    return float(scale.detach() ** 2)


def test_eq_11_leaves_the_variance_of_features_whose_mean_is_right():
    """With the mean of two frames in place of the expectation, nothing of it was left after a few dozen batches."""
    zero = torch.zeros(8, 4, 4)
    objective = Explicit(zero, 1.0, 0.0, zero, zero)

    def of_the_window(features):
        found = descriptor_distance(objective.mean, features, zero, zero)
        objective.mean = objective.mean.lerp(features.detach().mean(0), 0.1)
        return found

    assert shrunk(lambda features: features.mean(0).square().mean()) < 0.05
    assert shrunk(of_the_window) == pytest.approx(1.0, abs=0.1)


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
