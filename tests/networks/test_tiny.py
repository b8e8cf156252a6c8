"""The network to try things out with: its size, what it makes of clips, its parts."""

import pytest
import torch

from shared_components.networks.tiny import Tiny


@pytest.fixture(scope="module")
def network() -> Tiny:
    torch.manual_seed(0)
    return Tiny().eval()


def test_it_is_tiny_and_has_dropout_and_normalisation_with_running_statistics(network):
    assert sum(parameter.numel() for parameter in network.parameters()) == 5_476
    kinds = {type(module).__name__ for module in network.modules()}
    assert {"Dropout2d", "BatchNorm2d", "GroupNorm"} <= kinds


def test_a_picture_is_a_clip_that_repeats_it(network):
    image = torch.rand(2, 3, 16, 16)
    for frames in (1, 4):
        clip = image[:, None].expand(-1, frames, -1, -1, -1)
        torch.testing.assert_close(network(clip), network(image))


def test_the_past_counts_whatever_its_order_and_the_current_frame_counts_by_itself(network):
    clip = torch.rand(1, 4, 3, 16, 16)
    torch.testing.assert_close(network(clip[:, [2, 0, 1, 3]]), network(clip))
    assert not torch.allclose(network(clip[:, [0, 1, 3, 2]]), network(clip), atol=1e-4)
    assert not torch.allclose(network(clip[:, 3]), network(clip), atol=1e-4)


def test_every_parameter_is_trained_by_pictures_and_by_clips():
    network = Tiny().train()
    for image in (torch.rand(2, 3, 16, 16), torch.rand(2, 4, 3, 16, 16)):
        network.zero_grad()
        network(image).square().mean().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 4, 16, 16), (1, 3, 18, 16), (1, 4, 3, 16, 15)])
def test_another_size_is_refused_by_it(network, shape):
    with pytest.raises(ValueError, match=r"multiples of 4, and got \["):
        network(torch.zeros(shape))
